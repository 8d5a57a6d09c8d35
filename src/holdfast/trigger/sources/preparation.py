"""Looking a source definition up in its database: what is wrong with it comes out here, in words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, inspect
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.types import NULLTYPE, TypeEngine

from ...core.errors import SourceConfigurationError
from ...core.events import RowShape
from ...core.types import SourceDescriptor
from ...database.errors import connection_error, is_connection_failure, reason
from ...database.pools import autocommit
from ...database.reflection import reflect_table
from ...database.server_roles import is_standby
from . import inspection, statement
from .hidden_rows import hidden_rows
from .horizons.base import Horizon, NoSoundHorizonError, Unbounded
from .horizons.choose import choose
from .moments import with_offset
from .result_types import ColumnTypes, result_types
from .settings import SourceSettings
from .unique_keys import unproved
from .update_proof import UpdateProof, proof_of_updates

_log = logging.getLogger("holdfast.trigger")


@dataclass(slots=True)
class Prepared:
    """A definition that was found to be right, ready to read with."""

    engine: Engine
    query: statement.KeysetQuery
    shape: RowShape
    horizon: Horizon
    facts: inspection.CursorFacts | None
    proof: UpdateProof
    may_have_nulls: bool
    checked_at: float
    table: Table | None  # None for a view or a query
    has_unique_places: bool = False  # a unique key lies within cursor and key, so no two rows have the same place
    hidden: str | None = None
    is_of_standby: bool = False
    is_plain: bool | None = None  # known once a page was read
    statements: dict[tuple[bool, bool, int, bool, bool], Select[Any]] = field(default_factory=dict)
    types: list[TypeEngine[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.types = [column.type for column in self.query.selected]


def prepare(engine: Engine, settings: SourceSettings, descriptor: SourceDescriptor, now: float) -> Prepared:
    """Look the definition up.

    Raises:
        SourceConfigurationError: it does not fit the database; the message says what to do.
    """
    table, facts, has_unique_places = None, None, False
    if settings.table is not None:
        table = reflect_table(engine, settings.table, settings.schema, SourceConfigurationError)
        inspection.require_columns(table, settings.named_columns)
        facts = inspection.cursor_facts(engine, table, settings.cursor_column)
        query = statement.over_table(
            table, settings.cursor_column, settings.pk_columns, settings.where, engine.dialect.name
        )
        _warn_without_index(engine, table, settings)
        has_unique_places = _has_unique_key(engine, table, facts, settings)
    else:
        query = _over_query(engine, settings, descriptor)
    horizon = _chosen_horizon(engine, table, facts, settings, descriptor)
    with autocommit(engine) as connection:
        is_of_standby = is_standby(connection)
        horizon = _prepared_horizon(connection, horizon, settings)
        facts = None if facts is None else with_offset(connection, facts, horizon.name)
    may_have_nulls = facts is None or table is None or facts.nullable
    if table is not None:
        may_have_nulls |= bool(inspection.nullable_columns(engine, table, settings.pk_columns))
    proof, shape = _proof(engine, facts, settings), _shape(query, settings, descriptor)
    is_plain = table is not None and not inspection.is_view(inspect(engine), table)
    plain = table if is_plain else None
    prepared = Prepared(engine, query, shape, horizon, facts, proof, may_have_nulls, now, plain, has_unique_places)
    prepared.hidden, prepared.is_of_standby = present_hidden(prepared, settings), is_of_standby
    return prepared


def present_proof(prepared: Prepared, settings: SourceSettings) -> UpdateProof:
    """Return what is proved about updates now: someone may have dropped or changed what proved it."""
    if settings.table is None:
        return prepared.proof
    table = reflect_table(prepared.engine, settings.table, settings.schema, SourceConfigurationError)
    inspection.require_columns(table, settings.named_columns)
    return _proof(prepared.engine, inspection.cursor_facts(prepared.engine, table, settings.cursor_column), settings)


def present_hidden(prepared: Prepared, settings: SourceSettings) -> str | None:
    """Return whether row level security hides rows now: it may have been turned on, or a policy changed."""
    probe = prepared.query.page(has_cursor=False, has_bound=False, limit=0)
    return hidden_rows(prepared.engine, prepared.shape.source.name, prepared.table, probe, settings.parameters)


def refresh_offset(prepared: Prepared) -> None:
    """Look again how far local time is ahead of UTC: summer time may have begun or ended."""
    if prepared.facts is not None and prepared.facts.local_offset is not None:
        with autocommit(prepared.engine) as connection:
            prepared.facts = with_offset(connection, prepared.facts, prepared.horizon.name)


def _proof(engine: Engine, facts: inspection.CursorFacts | None, settings: SourceSettings) -> UpdateProof:
    is_trusted = settings.updates == "trusted"
    return proof_of_updates(facts, engine.dialect.name, settings.table, settings.schema, is_trusted=is_trusted)


def is_current(prepared: Prepared, settings: SourceSettings) -> bool:
    """Return whether the database still has the columns that were found, and keeps the cursor as it did.

    A column that was added, a trigger that was dropped, or a standby that was promoted shows in no error.

    Raises:
        SourceConfigurationError: the table is gone.
    """
    known = prepared.query.all_columns
    if prepared.is_of_standby:
        with autocommit(prepared.engine) as connection:
            if not is_standby(connection):
                return False
    if settings.table is None:
        with autocommit(prepared.engine) as connection:
            columns = result_types(connection, _one_select(settings), settings.parameters)
        same = [(name, repr(kind or NULLTYPE)) for name, kind in columns.items()] == _described(known)
        return same and present_hidden(prepared, settings) == prepared.hidden
    table = reflect_table(prepared.engine, settings.table, settings.schema, SourceConfigurationError)
    if _described(table.c) != _described(known):
        return False
    is_proof_same = present_proof(prepared, settings) == prepared.proof
    return is_proof_same and present_hidden(prepared, settings) == prepared.hidden


def _described(columns: Iterable[ColumnElement[Any]]) -> list[tuple[str, str]]:
    return [(str(getattr(each, "name", each)), repr(each.type)) for each in columns]


def _one_select(settings: SourceSettings) -> str:
    return (settings.query or "").strip().rstrip(";")


def _over_query(engine: Engine, settings: SourceSettings, descriptor: SourceDescriptor) -> statement.KeysetQuery:
    query = _one_select(settings)
    with autocommit(engine) as connection:
        try:
            columns: ColumnTypes = result_types(connection, query, settings.parameters)
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
        query, columns, settings.cursor_column, settings.pk_columns, settings.where, engine.dialect.name
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
        asked, timezone = settings.horizon or "auto", settings.cursor_timezone
        return choose(asked, engine.dialect.name, table, facts, settings.margin, timezone)
    except NoSoundHorizonError as error:
        if settings.lookback is None and settings.horizon == "auto":
            raise
        if settings.lookback is None:
            _log.warning("%s Until then '%s' is read without a horizon.", error, descriptor.name)
        return Unbounded()


def _prepared_horizon(connection: Connection, horizon: Horizon, settings: SourceSettings) -> Horizon:
    """Return the horizon, checked; none where this server has no sound one, and a window was given in its place."""
    try:
        horizon.prepare(connection)
    except NoSoundHorizonError:
        if settings.lookback is None or settings.horizon not in (None, "auto"):
            raise
        return Unbounded()
    return horizon


def _warn_without_index(engine: Engine, table: Table, settings: SourceSettings) -> None:
    create = inspection.missing_index(engine, table, settings.cursor_column, settings.pk_columns)
    if create is not None:
        _log.warning(
            "Cursor column '%s' of table '%s' has no index, so every poll reads the whole table. Run: %s",
            settings.cursor_column,
            settings.table,
            create,
        )


def _has_unique_key(engine: Engine, table: Table, facts: inspection.CursorFacts, settings: SourceSettings) -> bool:
    """Return whether no two rows can have the same place. What is not known of a view or of ids is seen when read.

    Raises:
        SourceConfigurationError: two rows of this table could be the same one.
    """
    why = unproved(engine, table, [settings.cursor_column, *settings.pk_columns])
    if why is None or facts.generated_id or inspection.is_view(inspect(engine), table):
        return why is None
    reasons = f" ({why})" if why else ""
    message = (
        f"No unique constraint of table '{settings.table}' lies within its cursor and key ({settings.cursor_column}, "
        f"{', '.join(settings.pk_columns)}){reasons}, so two rows could look the same and one of them be skipped. "
        "Choose key columns that are unique together, such as the primary key, or add a unique index on them."
    )
    if settings.horizon is not None:
        raise SourceConfigurationError(message)
    _log.warning("%s", message)
    return False


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


def operation_reader(
    columns: Sequence[str], cursor_at: int, created_column: str | None, deleted_column: str | None
) -> Callable[[Sequence[object]], str] | None:
    """Return a function from row to operation, or None when no column tells and every row is an ``upsert``."""
    if created_column is None and deleted_column is None:
        return None
    created_at = None if created_column is None else columns.index(created_column)
    deleted_at = None if deleted_column is None else columns.index(deleted_column)

    def operation(row: Sequence[object]) -> str:
        if deleted_at is not None and row[deleted_at]:
            return "delete"
        if created_at is None:
            return "upsert"
        return "insert" if row[created_at] == row[cursor_at] else "update"

    return operation
