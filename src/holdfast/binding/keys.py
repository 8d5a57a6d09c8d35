"""Writing by primary key: the conditions and parameters of it, and proof that a key has met no more than its row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, bindparam, inspect, tuple_
from sqlalchemy.engine import Connection

from ..core.errors import ConfigurationError
from ..core.key_text import shown_key
from ..database.column_values import Fit, key_fit_of, shown_type
from ..database.reflection import qualified
from .tables import DIALECT

RowData = dict[str, object]
KEYS = "holdfast_keys"
WITHOUT_KEY = "Give the table one, or use insert() or upsert()."
_KEY_PREFIX = "holdfast_key_"
_MOST_KEYS = 1000


class UnfitKeyError(ConfigurationError):
    """A value cannot stand in the key column it is given for; no database was asked."""


class OutdatedKeyError(ConfigurationError):
    """A key that was unique when the table was looked up has met several rows."""


def key_columns(table: Table) -> list[str]:
    """Return the names of the primary key's columns."""
    return [column.name for column in table.primary_key.columns]


def by_key(table: Table) -> list[ColumnElement[bool]]:
    """Return the conditions that find the row of a key, given as parameters."""
    return [table.c[name] == bindparam(parameter) for name, parameter in _key_names(table).items()]


def with_key_names(table: Table, rows: Sequence[RowData]) -> list[RowData]:
    """Return the parameters for ``by_key``: rows with their key columns called what they are called there."""
    names = _key_names(table)
    return [{names.get(name, name): value for name, value in row.items()} for row in fitting_keys(table, rows)]


def _key_names(table: Table) -> dict[str, str]:
    """Return for each key column what its value is called as a parameter: nothing that a column is called."""
    prefix = _KEY_PREFIX
    while any(name.startswith(prefix) for name in map(str, table.c.keys())):
        prefix += "_"
    return {name: f"{prefix}{number}" for number, name in enumerate(key_columns(table))}


def in_listed_keys(table: Table) -> ColumnElement[bool]:
    """Return the condition that a row's key is in a list: MySQL's drivers would send a statement for each key."""
    columns = list(table.primary_key.columns)
    key: ColumnElement[Any] = columns[0] if len(columns) == 1 else tuple_(*columns)
    return key.in_(bindparam(KEYS, type_=key.type, expanding=True))


def listed_keys(table: Table, pks: Sequence[RowData]) -> list[RowData]:
    """Return the parameters for ``in_listed_keys``, in lists that fit into a statement."""
    names = key_columns(table)
    fitting_pks = fitting_keys(table, pks)
    keys = [pk[names[0]] if len(names) == 1 else tuple(pk[name] for name in names) for pk in fitting_pks]
    return [{KEYS: keys[at : at + _MOST_KEYS]} for at in range(0, len(keys), _MOST_KEYS)]


def fitting_rows(table: Table, rows: Sequence[RowData], names: Collection[str]) -> list[RowData]:
    """Return rows whose values in the columns of these names are of the columns' types, converted where that is exact.

    Databases would guess: MariaDB deletes row 42 for '42abc', and row 0 for 'nope'.

    Raises:
        UnfitKeyError: one does not fit; the message names column, value and type.
    """
    fits = {name: key_fit_of(table.c[name].type, table.info[DIALECT]) for name in names}
    return [_fitting(table, row, fits) for row in rows]


def fitting_keys(table: Table, rows: Sequence[RowData]) -> list[RowData]:
    """Return rows whose primary key fits its columns. Raises as ``fitting_rows`` does."""
    return fitting_rows(table, rows, key_columns(table))


def _fitting(table: Table, row: RowData, fits: Mapping[str, Fit | None]) -> RowData:
    for name, fit in fits.items():
        value = row.get(name)
        if fit is None or value is None:
            continue
        try:
            fitting = fit(value)
        except ValueError as error:
            raise _unfit(table, name, value, error) from None
        if fitting is not value:
            row = {**row, name: fitting}
    return row


def _unfit(table: Table, name: str, value: object, error: ValueError) -> UnfitKeyError:
    return UnfitKeyError(
        f"{shown_key(value)} cannot be a key in column '{name}' of '{qualified(table.name, table.schema)}', which is "
        f"{shown_type(table.c[name].type)}: {error}. The database was not asked."
    )


def require_values(rows: Sequence[RowData], names: Iterable[str], what: str) -> None:
    """Check that every row has a value for each column that names it: NULL equals nothing, so it names no row.

    Raises:
        ConfigurationError: one has none; the message names the column and the row.
    """
    for name in names:
        for number, row in enumerate(rows, start=1):
            if row.get(name) is None:
                fact = "is None" if name in row else "is missing"
                where = f" in row {number} of {len(rows)}" if len(rows) > 1 else ""
                raise ConfigurationError(
                    f"{what} '{name}' {fact}{where}, so no row can be told by it. Give it a value. Nothing was written."
                )


def require_one_row_each(connection: Connection, table: Table, changed: int, keys: int) -> None:
    """Check that no key has met several rows, as it does once the table was made anew with another primary key.

    Raises:
        OutdatedKeyError: one has; the transaction must be rolled back.
    """
    if changed <= 0 or changed == keys:  # below zero: the driver does not tell
        return
    now = inspect(connection).get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    if changed > keys or set(now) != set(key_columns(table)):
        raise OutdatedKeyError(
            f"({', '.join(key_columns(table))}) does not name one row of '{qualified(table.name, table.schema)}' any "
            f"more: its primary key is ({', '.join(now)}). Nothing was written."
        )
