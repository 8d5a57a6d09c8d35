"""Looking a source definition up in its database: what is wrong with it comes out here, in words."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Table
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...core.driver_errors import connection_error, is_connection_failure, reason
from ...core.engine import autocommit
from ...core.errors import SourceConfigurationError
from ...core.events import RowShape
from ...core.reflection import reflect_table
from ...core.types import SourceDescriptor
from . import inspection, statement
from .horizons.base import Horizon, Unbounded
from .horizons.choose import HORIZON_NAMES, NoSoundHorizonError, choose
from .operations import operation_reader

_log = logging.getLogger("holdfast.trigger")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """A source as it was declared."""

    table: str | None
    schema: str | None
    query: str | None
    cursor_column: str
    pk_columns: tuple[str, ...]
    where: str | None
    parameters: dict[str, object]
    cursor_types: tuple[type, ...]
    horizon: str | None
    margin: timedelta
    lookback: timedelta | float | None
    lookback_limit: int
    created_column: str | None
    deleted_column: str | None

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
            (strategy != "cursor", f"Unsupported strategy: '{strategy}'. Only 'cursor' is supported."),
            (
                operation_mode != "upsert_only",
                f"Unsupported operation_mode: '{operation_mode}'. Only 'upsert_only' is supported.",
            ),
        ):
            if broken:
                raise SourceConfigurationError(message)

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
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise SourceConfigurationError(f"pk_columns must be a list of column names, as in ['id'], not {given!r}.")
    return tuple(given)


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


@dataclass(slots=True)
class Prepared:
    """A definition that was found to be right, ready to read with."""

    engine: Engine
    query: statement.KeysetQuery
    shape: RowShape
    horizon: Horizon
    facts: inspection.CursorFacts | None
    may_have_nulls: bool
    checked_at: float
    is_plain: bool | None = None  # known once a page was read


def prepare(engine: Engine, settings: SourceSettings, descriptor: SourceDescriptor, now: float) -> Prepared:
    """Look the definition up.

    Raises:
        SourceConfigurationError: it does not fit the database; the message says what to do.
    """
    table, facts = None, None
    if settings.table is not None:
        table = reflect_table(engine, settings.table, settings.schema, SourceConfigurationError)
        inspection.require_columns(table, settings.named_columns)
        facts = inspection.cursor_facts(engine, table, settings.cursor_column)
        query = statement.over_table(
            table, settings.cursor_column, settings.pk_columns, settings.where, engine.dialect.name
        )
        _warn_without_index(engine, table, settings)
        if not facts.generated_id:
            _require_telling_key(engine, table, settings)
    else:
        query = _over_query(engine, settings, descriptor)
    horizon = _chosen_horizon(engine, table, facts, settings, descriptor)
    with autocommit(engine) as connection:
        horizon.prepare(connection)
    may_have_nulls = facts is None or table is None or facts.nullable
    if table is not None:
        may_have_nulls |= any(table.c[name].nullable and not table.c[name].primary_key for name in settings.pk_columns)
    return Prepared(engine, query, _shape(query, settings, descriptor), horizon, facts, may_have_nulls, now)


def is_current(prepared: Prepared, settings: SourceSettings) -> bool:
    """Return whether the database still has the columns that were found: one that was added shows in no error.

    Raises:
        SourceConfigurationError: the table is gone.
    """
    known = prepared.query.all_columns
    if settings.table is None:
        with autocommit(prepared.engine) as connection:
            query = _one_select(settings)
            return inspection.column_names_of(connection, query, settings.parameters) == [each.name for each in known]
    table = reflect_table(prepared.engine, settings.table, settings.schema, SourceConfigurationError)
    return [(each.name, repr(each.type)) for each in table.c] == [(each.name, repr(each.type)) for each in known]


def _one_select(settings: SourceSettings) -> str:
    return (settings.query or "").strip().rstrip(";")


def _over_query(engine: Engine, settings: SourceSettings, descriptor: SourceDescriptor) -> statement.KeysetQuery:
    query = _one_select(settings)
    with autocommit(engine) as connection:
        try:
            columns = inspection.column_names_of(connection, query, settings.parameters)
        except DBAPIError as error:
            if is_connection_failure(error):
                raise
            raise SourceConfigurationError(
                f"The query of '{descriptor.name}' does not run: {reason(error)}. It must be one SELECT that can stand "
                "in a FROM clause."
            ) from error
    missing = [name for name in settings.named_columns if name not in columns]
    if missing:
        raise SourceConfigurationError(
            f"The query of '{descriptor.name}' does not return column(s) {', '.join(missing)}. It returns: "
            f"{', '.join(columns)}."
        )
    return statement.over_query(
        query, columns, settings.cursor_column, settings.pk_columns, settings.where, engine.dialect.name, {}
    )


def _shape(query: statement.KeysetQuery, settings: SourceSettings, descriptor: SourceDescriptor) -> RowShape:
    names = tuple(column.name for column in query.all_columns)
    cursor_at = names.index(settings.cursor_column)
    keys_at = [names.index(name) for name in settings.pk_columns]
    operation = operation_reader(names, cursor_at, settings.created_column, settings.deleted_column)
    if query.needs_raw_copies:
        cursor_at, keys_at = len(names), [len(names) + 1 + at for at in range(len(keys_at))]
    keys = tuple(zip(settings.pk_columns, keys_at, strict=True))
    return RowShape(descriptor, names, cursor_at, keys, operation)


def _chosen_horizon(
    engine: Engine,
    table: Table | None,
    facts: inspection.CursorFacts | None,
    settings: SourceSettings,
    descriptor: SourceDescriptor,
) -> Horizon:
    try:
        return choose(settings.horizon or "auto", engine.dialect.name, table, facts, settings.margin)
    except NoSoundHorizonError as error:
        if settings.lookback is None and settings.horizon == "auto":
            raise
        if settings.lookback is None:
            _log.warning("%s Until then '%s' is read without a horizon.", error, descriptor.name)
        return Unbounded()


def _warn_without_index(engine: Engine, table: Table, settings: SourceSettings) -> None:
    create = inspection.missing_index(engine, table, settings.cursor_column, settings.pk_columns)
    if create is not None:
        _log.warning(
            "Cursor column '%s' of table '%s' has no index, so every poll reads the whole table. Run: %s",
            settings.cursor_column,
            settings.table,
            create,
        )


def _require_telling_key(engine: Engine, table: Table, settings: SourceSettings) -> None:
    """Refuse keys under which two rows could be the same one: the second would be skipped at the end of a page."""
    if inspection.tells_rows_apart(engine, table, [settings.cursor_column, *settings.pk_columns]):
        return
    message = (
        f"No unique constraint of table '{settings.table}' lies within its cursor and key ({settings.cursor_column}, "
        f"{', '.join(settings.pk_columns)}), so two rows could look the same and one of them be skipped. Choose key "
        "columns that are unique together, such as the primary key, or add a unique index on them."
    )
    if settings.horizon is not None:
        raise SourceConfigurationError(message)
    _log.warning("%s", message)


def check_statement(prepared: Prepared, settings: SourceSettings) -> None:
    """Run the page statement once, so that a wrong filter is found before anything is delivered.

    Raises:
        SourceConfigurationError: the database refuses it.
    """
    name = prepared.shape.source.name
    probe = prepared.query.page(has_cursor=False, has_bound=False, limit=1)
    try:
        with autocommit(prepared.engine) as connection:
            connection.execute(probe, settings.parameters)
    except DBAPIError as error:
        if is_connection_failure(error):
            raise connection_error(prepared.engine.url, error) from error
        raise SourceConfigurationError(_refused(name, settings, error)) from error
    except SQLAlchemyError as error:
        raise SourceConfigurationError(_refused(name, settings, error)) from error


def _refused(name: str, settings: SourceSettings, error: SQLAlchemyError) -> str:
    if settings.where is None:
        return f"The source '{name}' cannot be read: {reason(error)}. Check its columns, parameters and grants."
    return (
        f"The where clause of '{name}' does not work: {reason(error)}. Clause: {settings.where}. Write a plain SQL "
        "condition, with :name for each of parameters."
    )


def null_error(prepared: Prepared, settings: SourceSettings) -> SourceConfigurationError:
    """Return the error for rows that have no place in the order."""
    columns = [settings.cursor_column, *settings.pk_columns]
    return SourceConfigurationError(
        f"'{prepared.shape.source.name}' has rows with NULL in its cursor '{settings.cursor_column}' or key "
        f"({', '.join(settings.pk_columns)}): they have no place in the order and would never be delivered. Fill the "
        "columns and make them NOT NULL, or leave those rows out with "
        f'where="{" AND ".join(f"{name} IS NOT NULL" for name in columns)}".'
    )
