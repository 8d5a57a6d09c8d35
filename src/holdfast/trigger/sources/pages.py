"""Reading pages in the database's order; rows it cannot tell apart, or that cannot be read, are refused [KEYSET-1].

The next page begins behind the last row of the one before. A row with the same cursor and key, on the other side of the
boundary, would never be read. Where no unique key rules that out (a view, a query, a table without such a key), a page
is read with one row more, and the database is asked whether the two rows at the boundary have the same place.

A page ends before a row with a value that Python has no form for. What lies before it is delivered, what lies behind it
is not: nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy.engine import Connection, CursorResult

from ...core.cursor import KeysetCursor
from ...core.errors import SourceConfigurationError, UnreadableRowError
from ...database.barrier import Reading
from ...database.fetching import all_rows, fetched
from ...database.unreadable import Fetched, UnreadableRow
from . import statement
from .horizons.base import UNBOUNDED
from .preparation import Prepared
from .settings import SourceSettings

_COMPARED_ALIKE = (int, float, Decimal, datetime, date, timedelta, UUID, bytes)
"""Values that differ for the database if they differ for Python. Texts do not belong to them: collations."""


class Pages:
    """Reads pages on one connection, below one bound."""

    def __init__(self, prepared: Prepared, settings: SourceSettings, connection: Connection, reading: Reading) -> None:
        self._prepared = prepared
        self._settings = settings
        self._connection = connection
        self._bound = reading.bound
        self.stopped_by: UnreadableRow | None = None

    def below(self, bound: object) -> Pages:
        """Return the same with another bound."""
        return Pages(self._prepared, self._settings, self._connection, Reading(bound))

    def read(
        self,
        cursor: KeysetCursor | None,
        limit: int,
        *,
        inclusive: bool = False,
        marks: tuple[KeysetCursor, object] | None = None,
    ) -> Sequence[Any]:
        """Return at most ``limit`` rows after the cursor (or from its value on).

        With ``marks``, a place and a value, each row ends with two numbers: whether it lies behind that place, and
        whether it is not below that value.

        Raises:
            SourceConfigurationError: a page would end between rows that the order cannot tell apart.
        """
        is_apart = self._prepared.has_unique_places
        found = self._rows(cursor, limit if is_apart else limit + 1, inclusive, marks)
        self.stopped_by = found.bad
        rows = found.rows if found.bad is None else [*found.rows, found.bad.values]
        last = min(limit, len(found.rows))
        if not is_apart and 0 < last < len(rows):
            self._require_apart(rows[last - 1], rows[last])
        return rows[:last]

    def first(self, cursor: KeysetCursor | None, *, inclusive: bool = False) -> Any | None:
        """Return the first row after the cursor (or from its value on), also one that cannot be read."""
        found = self._rows(cursor, 1, inclusive, None)
        first = found.rows[0] if found.rows else None
        return found.bad.values if found.bad is not None else first

    def unreadable(self) -> UnreadableRowError | None:
        """Return the error for the row that the last page has stopped at, None where it has not."""
        if self.stopped_by is None:
            return None
        shape, row = self._prepared.shape, self.stopped_by.values
        key = ", ".join(f"{name}={row[at]}" for name, at in shape.keys)
        return UnreadableRowError(
            f"The row {key} of '{shape.source.name}' cannot be read, and nothing behind it is delivered: its "
            f"{self.stopped_by.problem(shape.row_columns)}. Mend it, leave it out with where=…, or read the column as "
            "text with query='SELECT …'."
        )

    def equal_keysets(self) -> SourceConfigurationError:
        """Return the error for two rows with the same place in the order."""
        settings = self._settings
        return SourceConfigurationError(
            f"Two rows of '{self._prepared.shape.source.name}' have the same cursor and key ({settings.cursor_column}, "
            f"{', '.join(settings.pk_columns)}), so one of them could be skipped: name more key columns, until no two "
            "rows agree in all of them."
        )

    def _require_apart(self, last: Sequence[object], following: Sequence[object]) -> None:
        shape = self._prepared.shape
        place = shape.keyset(last)
        if surely_apart(place, shape.keyset(following)):
            return
        binds = self._settings.parameters | self._place(place)
        if len(self._connection.execute(self._prepared.query.same_place(), binds).all()) > 1:
            raise self.equal_keysets()

    def _rows(
        self, cursor: KeysetCursor | None, limit: int, inclusive: bool, marks: tuple[KeysetCursor, object] | None
    ) -> Fetched:
        prepared, has_bound = self._prepared, self._bound is not UNBOUNDED
        key = (cursor is not None, has_bound, limit, inclusive and cursor is not None, marks is not None)
        if key not in prepared.statements:
            prepared.statements[key] = prepared.query.page(
                has_cursor=key[0], has_bound=key[1], limit=limit, inclusive=key[3], marked=key[4]
            )
        binds = self._settings.parameters | ({} if cursor is None else self._place(cursor))
        if has_bound:
            binds[statement.BOUND_PARAM] = self._bound
        if marks is not None:
            binds |= prepared.query.marks(marks[0].value, marks[0].key_values, marks[1])

        def execute() -> CursorResult[Any]:
            return self._connection.execute(prepared.statements[key], binds)

        result = execute()
        if prepared.is_plain is None:
            prepared.is_plain = prepared.query.is_plain(result)
        read = statement.plain_rows if prepared.is_plain else all_rows
        return fetched(result, read, types=prepared.types, again=execute)

    def _place(self, cursor: KeysetCursor) -> dict[str, object]:
        return self._prepared.query.parameters(cursor.value, cursor.key_values)


def surely_apart(one: KeysetCursor, other: KeysetCursor) -> bool:
    """Return whether two places differ for any database, whatever it thinks of texts."""
    pairs = zip((one.value, *one.key_values), (other.value, *other.key_values), strict=True)
    return any(_differ(left, right) for left, right in pairs)


def _differ(left: Any, right: Any) -> bool:
    if not isinstance(left, _COMPARED_ALIKE) or not isinstance(right, _COMPARED_ALIKE):
        return False
    is_number = bool(left == left and right == right)  # NaN equals itself in a database only
    return is_number and bool(left != right)
