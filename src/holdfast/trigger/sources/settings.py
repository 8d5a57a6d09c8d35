"""A source as it was declared, and what can be refused of it without asking the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, Table

from ...core.errors import SourceConfigurationError
from .horizons.choose import HORIZON_NAMES
from .update_proof import check_updates


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonSettings:
    """How far a source is read."""

    horizon: str | None = None
    horizon_margin_seconds: float = 0.5
    lookback: timedelta | float | None = None
    lookback_limit: int = 5000

    @property
    def margin(self) -> timedelta:
        """Return how long a transaction may need to report its start."""
        return timedelta(seconds=self.horizon_margin_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSettings(HorizonSettings):
    """How a cursor source is read."""

    created_column: str | None = None
    deleted_column: str | None = None
    updates: str | None = None
    cursor_timezone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings(ReadingSettings):
    """A source as it was declared."""

    table: str | None
    schema: str | None
    query: str | None
    cursor_column: str
    pk_columns: tuple[str, ...]
    where: str | None
    parameters: dict[str, object]
    cursor_types: tuple[type, ...]

    def check(self, strategy: str, operation_mode: str) -> None:
        """Refuse what is wrong without asking the database.

        Raises:
            SourceConfigurationError: the first thing that is wrong.
        """
        for broken, message in (
            (bool(self.table) == bool(self.query), "Exactly one of 'table' or 'query' must be provided."),
            (not self.cursor_column, "cursor_column must not be empty."),
            (
                self.horizon is not None and self.horizon not in HORIZON_NAMES,
                f"horizon={self.horizon!r} is not known: use one of {', '.join(HORIZON_NAMES)}.",
            ),
            (
                not self.pk_columns,
                "pk_columns must not be empty: name columns that tell rows with equal cursors apart.",
            ),
            (
                not is_balanced(self.where or ""),
                f"The where clause has unbalanced parentheses or quotes: {self.where}. Write one plain SQL condition.",
            ),
            (
                has_several_statements(self.where or ""),
                f"The where clause has a ';' in it: {self.where}. Write one plain SQL condition.",
            ),
            (strategy != "cursor", f"Unsupported strategy: '{strategy}'. Only 'cursor' is supported."),
            (
                operation_mode != "upsert_only",
                f"Unsupported operation_mode: '{operation_mode}'. Only 'upsert_only' is supported.",
            ),
        ):
            if broken:
                raise SourceConfigurationError(message)
        check_updates(self.updates)

    def polls(self, table: str, schema: str | None) -> bool:
        """Return whether it reads this table."""
        return (self.table, self.schema) == (table, schema)

    @property
    def named_columns(self) -> list[str]:
        """Return every column the definition names."""
        extra = [name for name in (self.created_column, self.deleted_column) if name]
        return [self.cursor_column, *self.pk_columns, *extra]


def column_names(given: object) -> tuple[str, ...]:
    """Return a list of column names as it was given: a single text would pass for a list of letters.

    Raises:
        SourceConfigurationError: it is no list of names.
    """
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, (str, ColumnElement)) for each in given):
        raise SourceConfigurationError(f"pk_columns must be a list of column names, as in ['id'], not {given!r}.")
    return tuple(column_name(each) or "" for each in given)


def one_condition(where: object) -> str | None:
    """Return a filter without the ';' that ends a statement.

    Raises:
        SourceConfigurationError: it is no text.
    """
    if where is None:
        return None
    if not isinstance(where, str):
        raise SourceConfigurationError(f"where must be the text of an SQL condition, not {type(where).__name__}.")
    stripped = where.strip()
    return stripped.rstrip("; \t\n") if stripped.endswith(";") else where


def table_name(table: object, schema: str | None) -> tuple[str | None, str | None]:
    """Return the name and schema of a table, given as text or as a ``Table`` of SQLAlchemy (or a class mapped to one).

    Raises:
        SourceConfigurationError: it is neither, or its schema is another than the one that was given.
    """
    if table is None or isinstance(table, str):
        return table, schema
    found = getattr(table, "__table__", table)
    if not isinstance(found, Table):
        raise SourceConfigurationError(
            f"table must be a table's name or a Table, not {type(table).__name__}. For a SELECT pass query='…'."
        )
    if schema is not None and found.schema not in (None, schema):
        raise SourceConfigurationError(f"Table '{found}' is not in schema '{schema}'. Leave out schema=…")
    return found.name, schema or found.schema


def column_name(column: object) -> str | None:
    """Return a column's name, given as text or as a column of SQLAlchemy.

    Raises:
        SourceConfigurationError: it is neither.
    """
    name = column if column is None or isinstance(column, str) else getattr(column, "name", None)
    if column is not None and not isinstance(name, str):
        raise SourceConfigurationError(f"A column is given by its name or as a Column, not as {type(column).__name__}.")
    return name


def is_balanced(condition: str) -> bool:
    """Return whether every parenthesis outside quotes closes one that was opened: a filter must not end our own."""
    depth, quote = 0, ""
    for character in condition:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
        if depth < 0:
            return False
    return depth == 0 and not quote


def has_several_statements(condition: str) -> bool:
    """Return whether a ';' outside quotes would end our statement."""
    quote = ""
    for character in condition:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character == ";":
            return True
    return False
