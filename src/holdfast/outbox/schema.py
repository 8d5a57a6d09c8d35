"""The migration of the outbox's tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    insert,
    select,
)
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.expression import cast
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from ..database.key_collation import KEY_TABLE
from ..database.migrations import Migration
from ..database.statements import family
from ..records.times import UtcMoment
from .statements import named


class _Xid8(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """Return PostgreSQL's name of the type."""
        return "xid8"


class TransactionId(TypeDecorator[int]):
    """A transaction id: xid8 on PostgreSQL, which its driver hands out as text; elsewhere a number."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return what the database keeps."""
        kept: TypeEngine[Any] = _Xid8() if dialect.name == "postgresql" else BigInteger()
        return dialect.type_descriptor(kept)

    def process_bind_param(self, value: int | None, dialect: Dialect) -> object:
        """Return the id as the driver wants it."""
        return str(value) if value is not None and dialect.name == "postgresql" else value

    def process_result_value(self, value: object, dialect: Dialect) -> int | None:
        """Return the id as a number."""
        return None if value is None else int(str(value))

    def bind_expression(self, bindvalue: BindParameter[int]) -> ColumnElement[int]:
        """Say the type: PostgreSQL does not turn anything else into an xid8 by itself."""
        return cast(bindvalue, self)


metadata = MetaData()

checkpoints_table = Table(
    "holdfast_processor_checkpoints",
    metadata,
    Column("processor_id", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("partition_number", Integer, primary_key=True),
    Column("partitions", Integer),
    Column("reading_order", String(16)),
    Column("role", String(16)),
    Column("status", String(16)),
    Column("reason", Text),
    Column("fencing_token", BigInteger),
    Column("last_processed_transaction_id", TransactionId),
    Column("last_processed_position", BigInteger),
    Column("highest_position", BigInteger),
    Column("system_identifier", String(40)),
    Column("timeline", Integer),
    Column("rebuild_transaction_id", TransactionId),
    Column("rebuild_position", BigInteger),
    Column("rebuild_started_at", UtcMoment),
    Column("updated_at", UtcMoment),
)
waiting_table = Table(
    "holdfast_processor_waiting",
    metadata,
    Column("processor_id", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("partition_number", Integer, primary_key=True),
    Column("instance_id", String(200), primary_key=True),
    Column("seen_at", UtcMoment),
)
pruned_table = Table(
    "holdfast_outbox_pruned",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("messages", BigInteger),
    Column("pruned_at", UtcMoment),
    **KEY_TABLE,
)
redeliveries_table = Table(
    "holdfast_processor_redeliveries",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("processor_id", String(100)),
    Column("version", Integer),
    Column("partition_number", Integer),
    Column("message", Text),
    Column("attempts", Integer),
)
parked_table = Table(
    "holdfast_processor_parked",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), Identity(), primary_key=True),
    Column("processor_id", String(100), nullable=False),
    Column("version", Integer, nullable=False),
    Column("partition_number", Integer, nullable=False),
    Column("key_digest", String(64), nullable=False),
    Column("letter_key", String(300), nullable=False),
    Column("is_waiting", Boolean, nullable=False),
    Column("redelivery_id", BigInteger),
    Index("holdfast_processor_parked_order", "processor_id", "version", "partition_number", "key_digest", "id"),
    Index("holdfast_processor_parked_letter", "letter_key"),
    Index("holdfast_processor_parked_redelivery", "redelivery_id"),
    sqlite_autoincrement=True,
    **KEY_TABLE,
)


def _create_outbox_tables(connection: Connection) -> None:
    for sql in named.schema(family(connection.dialect.name)):
        connection.exec_driver_sql(sql)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(named.whole("postgresql", "store_checkpoint_function"))


def _count_pruned(connection: Connection) -> None:
    """Add the count of deleted messages. Releases before this one did not count: what they deleted shows as a gap."""
    pruned_table.create(connection, checkfirst=True)
    if connection.execute(select(pruned_table.c.id)).one_or_none() is None:
        count = None if _has_gap(connection) else 0
        connection.execute(insert(pruned_table), {"id": 1, "messages": count})


def _has_gap(connection: Connection) -> bool:
    """Return whether the messages do not begin with the first one, or are gone although processors have passed some."""
    first = connection.exec_driver_sql("SELECT MIN(position) FROM holdfast_outbox").scalar_one()
    if first is not None:
        return bool(first > 1)
    passed = select(func.max(checkpoints_table.c.highest_position))
    return connection.execute(passed).scalar_one() is not None


def _add_parked(connection: Connection) -> None:
    """Add the table of parked messages. Older workers do not park keys, and pass by those that are parked."""
    parked_table.create(connection, checkfirst=True)


MIGRATIONS = (
    Migration(4, "outbox", _create_outbox_tables),
    Migration(10, "outbox: what was pruned", _count_pruned),
    Migration(17, "outbox: parked keys", _add_parked),
)
