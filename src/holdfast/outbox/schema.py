"""The migration of the outbox's tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.expression import cast
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from ..core.migrations import Migration
from ..core.named_sql import family
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


def _create_outbox_tables(connection: Connection) -> None:
    for sql in named.schema(family(connection.dialect.name)):
        connection.exec_driver_sql(sql)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(named.whole("postgresql", "store_checkpoint_function"))


MIGRATIONS = (Migration(4, "outbox", _create_outbox_tables),)
