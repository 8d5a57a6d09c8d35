"""Which columns an outbox table has, whatever their names: looked up once; what does not fit is refused in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sqlalchemy import JSON, Table, inspect
from sqlalchemy.engine import Engine

from ...core.errors import ConfigurationError, SourceConfigurationError
from ...database.reflection import qualified, reflect_table
from . import inspection
from .unique_keys import unproved

_DEFAULT_NAMES = {
    "position": "position",
    "transaction": "transaction_id",
    "message_id": "message_id",
    "message_type": "message_type",
    "data": "data",
}


@dataclass(frozen=True, slots=True)
class OutboxDefinition:
    """An outbox as it was declared.

    A column that is None goes by its default name, if the table has it. ``types`` are the message types to deliver.
    """

    position: str | None = None
    transaction: str | None = None
    message_id: str | None = None
    message_type: str | None = None
    data: str | None = None
    types: Sequence[str] | None = None

    @property
    def given(self) -> list[str]:
        """Return the names of what was declared."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]

    def check_types(self) -> None:
        """Refuse types that are no list of names: a single text would pass for a list of letters.

        Raises:
            ConfigurationError: they are not, or there are none.
        """
        types = self.types
        is_list = isinstance(types, (list, tuple, set, frozenset)) and all(isinstance(each, str) for each in types)
        if types is not None and not (is_list and types):
            raise ConfigurationError(f"types must be a list of message types, as in ['OrderPlaced'], not {types!r}.")


@dataclass(frozen=True, slots=True)
class OutboxColumns:
    """The columns to use, as the table has them.

    ``keys`` begin with the position. ``text_data`` is None where the driver hands JSON out as objects already.
    """

    keys: tuple[str, ...]
    transaction: str | None
    message_id: str | None
    message_type: str | None
    text_data: str | None

    @property
    def position(self) -> str:
        """Return the position column."""
        return self.keys[0]


def look_up(
    engine: Engine, table_name: str, schema: str | None, outbox: OutboxDefinition, *, uses_transaction: bool
) -> OutboxColumns:
    """Return the columns to use.

    Raises:
        SourceConfigurationError: the table or a column does not fit; the message says what to do.
    """
    table = reflect_table(engine, table_name, schema, SourceConfigurationError)
    _require_table(engine, table)
    position = _needed_column(table, outbox, "position")
    _require_filled(engine, table, position, "position")
    transaction = _transaction_column(engine, table, outbox) if uses_transaction else None
    find_type = _column if outbox.types is None else _needed_column
    data = _column(table, outbox, "data")
    return OutboxColumns(
        keys=_keys(engine, table, position, transaction),
        transaction=transaction,
        message_id=_column(table, outbox, "message_id"),
        message_type=find_type(table, outbox, "message_type"),
        text_data=None if data is None or isinstance(table.c[data].type, JSON) else data,
    )


def _require_table(engine: Engine, table: Table) -> None:
    """Refuse what only shows rows: writers lock the table behind it, and its rows can come from another server."""
    found = inspect(engine)
    only_shows_rows = inspection.is_view(found, table)
    if engine.dialect.name == "postgresql":  # there are materialized views and foreign tables, too
        only_shows_rows = table.name not in found.get_table_names(table.schema)
    if only_shows_rows:
        raise SourceConfigurationError(
            f"'{_name(table)}' is not a table but a view of one, so it cannot be told which messages are still to be "
            "committed: name the outbox table itself."
        )


def _column(table: Table, outbox: OutboxDefinition, role: str) -> str | None:
    """Return the column for a role; None when the table has none of the default name and no other was named."""
    named: str | None = getattr(outbox, role)
    name = _DEFAULT_NAMES[role] if named is None else named
    if name in table.c:
        return name
    if named is None:
        return None
    raise _missing(table, role, name)


def _needed_column(table: Table, outbox: OutboxDefinition, role: str) -> str:
    name = _column(table, outbox, role)
    if name is None:
        raise _missing(table, role, _DEFAULT_NAMES[role])
    return name


def _missing(table: Table, role: str, name: str) -> SourceConfigurationError:
    return SourceConfigurationError(
        f"Table '{_name(table)}' has no column '{name}': set {role}=… to one of those it has, "
        f"{', '.join(table.c.keys())}."
    )


def _require_filled(engine: Engine, table: Table, column: str, role: str) -> None:
    if inspection.cursor_facts(engine, table, column).nullable:
        raise SourceConfigurationError(
            f"Column '{column}' of table '{_name(table)}' may be NULL, and a message without its {role} has no place "
            "in the order and would never be delivered: make the column NOT NULL."
        )


def _transaction_column(engine: Engine, table: Table, outbox: OutboxDefinition) -> str | None:
    """Return the transaction column. One of another type is not used, unless it was named: then it is refused."""
    name = _column(table, outbox, "transaction")
    if name is None:
        return None
    type_name = inspection.cursor_facts(engine, table, name).type_name
    if type_name == "xid8":
        _require_filled(engine, table, name, "transaction")
        return name
    if outbox.transaction is None:
        return None
    raise SourceConfigurationError(
        f"Column '{name}' of table '{_name(table)}' is of type {type_name or 'unknown'}, but transaction=… needs xid8, "
        "which PostgreSQL fills with pg_current_xact_id(): leave transaction out to read by position alone."
    )


def _keys(engine: Engine, table: Table, position: str, transaction: str | None) -> tuple[str, ...]:
    """Return the position, and the primary key where the position alone does not tell messages apart.

    So it is in a partitioned outbox, where every unique constraint has to hold what it is partitioned by.
    """
    keys = [position] if transaction is None else [transaction, position]
    if unproved(engine, table, keys) is None:
        return (position,)
    return tuple(dict.fromkeys([position, *(column.name for column in table.primary_key)]))


def _name(table: Table) -> str:
    return qualified(table.name, table.schema)
