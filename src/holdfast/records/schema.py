"""The tables every workload writes its ends to: history, dead letters, audit.

The columns are the standard's; ``item_id`` and ``attempt`` say which try of which item an entry is about, so that a
worker whose COMMIT was not answered can learn whether it landed; ``worker`` says who had it, ``application`` whose
engine it was.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text, desc, inspect, text
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateColumn

from ..database.key_collation import KEY_TABLE, compare_by_bytes
from ..database.migrations import Migration
from .times import UtcMoment

PUBLISHER = "publisher"
ENGINE_LENGTH = 150
ID_LENGTH = 200
APPLICATION_LENGTH = 128  # of an app_name

metadata = MetaData()
_moment = UtcMoment()
_long_text = Text().with_variant(LONGTEXT(), "mysql", "mariadb")
_own_id = BigInteger().with_variant(Integer(), "sqlite")
_IS_NAMED_APART = text("correlation_id <> item_id")  # by default they are equal, and the other index finds both

history_table = Table(
    "holdfast_history",
    metadata,
    Column("id", _own_id, primary_key=True, autoincrement=True),
    Column("engine", String(ENGINE_LENGTH), nullable=False),
    Column("instance_id", String(ID_LENGTH), nullable=False, server_default=PUBLISHER),
    Column("operation", String(ID_LENGTH), nullable=False),
    Column("status", String(16), nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    Column("input", _long_text),
    Column("output", _long_text),
    Column("error", _long_text),
    Column("created_at", _moment, nullable=False),
    Column("correlation_id", String(ID_LENGTH), nullable=False),
    Column("item_id", String(ID_LENGTH)),
    Column("attempt", Integer),
    Column("worker", String(ID_LENGTH)),
    Column("application", String(APPLICATION_LENGTH)),
    Index("holdfast_history_correlation", "correlation_id"),
    Index("holdfast_history_engine", "engine", "id"),
    Index("holdfast_history_item", "item_id", postgresql_where=_IS_NAMED_APART, sqlite_where=_IS_NAMED_APART),
    sqlite_autoincrement=True,
    **KEY_TABLE,
)

# One for each way to list letters, the last failure first: a page then costs the same whatever the table's size. With
# the status behind the date two could go, but a question that finds nothing would read all letters of an engine.
_LISTING_INDEXES = {
    "holdfast_dead_letters_failure": ("last_failure_at",),
    "holdfast_dead_letters_engine": ("engine", "last_failure_at"),
    "holdfast_dead_letters_engine_status": ("engine", "status", "last_failure_at"),
    "holdfast_dead_letters_instance": ("instance_id", "last_failure_at"),
    "holdfast_dead_letters_instance_status": ("instance_id", "status", "last_failure_at"),
}

dead_letters_table = Table(
    "holdfast_dead_letters",
    metadata,
    Column("engine", String(ENGINE_LENGTH), primary_key=True),
    Column("row_key", String(300), primary_key=True),
    Column("instance_id", String(ID_LENGTH), nullable=False, server_default=PUBLISHER),
    Column("original_queue", String(ID_LENGTH), nullable=False),
    Column("original_message", _long_text, nullable=False),
    Column("error_message", _long_text, nullable=False),
    Column("dequeue_count", Integer, nullable=False),
    Column("first_failure_at", _moment, nullable=False),
    Column("last_failure_at", _moment, nullable=False),
    Column("status", String(16), nullable=False),
    Column("resolution_notes", _long_text),
    Column("resolved_at", _moment),
    Column("resolved_by", String(ID_LENGTH)),
    Column("correlation_id", String(ID_LENGTH), nullable=False),
    Column("item_id", String(ID_LENGTH)),
    Column("retried_as", String(ID_LENGTH)),
    Column("retry_message_id", String(ID_LENGTH)),
    Column("retry_begun_at", _moment),
    Column("retry_begun_by", String(ID_LENGTH)),
    Column("application", String(APPLICATION_LENGTH)),
    Index("holdfast_dead_letters_status", "status", "last_failure_at"),
    Index("holdfast_dead_letters_correlation", "correlation_id"),
    Index("holdfast_dead_letters_item", "item_id"),
    *(Index(name, *columns) for name, columns in _LISTING_INDEXES.items()),
    **KEY_TABLE,
)

audit_table = Table(
    "holdfast_audit",
    metadata,
    Column("id", _own_id, primary_key=True, autoincrement=True),
    Column("at", _moment, nullable=False),
    Column("actor", String(ID_LENGTH), nullable=False),
    Column("action", String(100), nullable=False),
    Column("target", String(500), nullable=False),
    Column("details", _long_text),
    Column("seal", Integer),
    Index("holdfast_audit_at", desc("at")),
    Index("holdfast_audit_seal", "seal", "id"),
    sqlite_autoincrement=True,
    **KEY_TABLE,
)

# A seal stays when its rows are pruned; then it has no ``row_digests`` any more, and ``rows_digest`` stands for them.
audit_seals_table = Table(
    "holdfast_audit_seals",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("sealed_at", _moment, nullable=False),
    Column("row_count", Integer, nullable=False),
    Column("rows_digest", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("row_digests", _long_text),
    **KEY_TABLE,
)


def _create_record_tables(connection: Connection) -> None:
    metadata.create_all(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            "ALTER TABLE holdfast_history SET (autovacuum_vacuum_insert_scale_factor = 0.05,"
            " autovacuum_analyze_scale_factor = 0.02)"
        )


def _add_retry_columns(connection: Connection) -> None:
    """Add what is missing. The columns are nullable, and older workers name the columns they write."""
    _add_columns(connection, dead_letters_table, "retry_message_id", "retry_begun_at", "retry_begun_by")


def _add_columns(connection: Connection, table: Table, *names: str) -> None:
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for name in names:
        if name not in there:
            column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")


def _add_listing_indexes(connection: Connection) -> None:
    """Add what is missing. Workers need not know; on PostgreSQL whoever writes a letter waits while they are built."""
    for index in dead_letters_table.indexes:
        if index.name in _LISTING_INDEXES:
            index.create(connection, checkfirst=True)


def _add_seals(connection: Connection) -> None:
    """Add what is missing. The column is nullable, and older workers name the columns they write."""
    _add_columns(connection, audit_table, "seal")
    for index in audit_table.indexes:
        index.create(connection, checkfirst=True)
    audit_seals_table.create(connection, checkfirst=True)


def _add_worker(connection: Connection) -> None:
    """Add what is missing. The column is nullable, and older workers name the columns they write."""
    _add_columns(connection, history_table, "worker")


def _add_application(connection: Connection) -> None:
    """Add what is missing. The columns are nullable, and older workers name the columns they write."""
    for records in (history_table, dead_letters_table):
        _add_columns(connection, records, "application")


# Queue and outbox are never without records, so their tables are changed here, too. Those that are joined by text come
# together: until all of them are changed, a worker's look for what lost workers held fails, and is repeated.
_WORK_TABLES = (
    "holdfast_jobs",
    "holdfast_topics",
    "holdfast_job_servers",
    "holdfast_remote_workers",
    "holdfast_rate_buckets",
    "holdfast_periodic",
    "holdfast_workers",
    "holdfast_job_keys",
    "holdfast_outbox",
    "holdfast_outbox_sequence",
    "holdfast_outbox_pruned",
    "holdfast_processor_checkpoints",
    "holdfast_processor_waiting",
    "holdfast_processor_redeliveries",
)


def _compare_by_bytes(connection: Connection) -> None:
    """Change the tables that are there. Workers go on: what they ask for is found as before, or by its bytes."""
    compare_by_bytes(connection, (*_WORK_TABLES, *metadata.tables))


MIGRATIONS = (
    Migration(2, "records", _create_record_tables),
    Migration(5, "engine records", _add_retry_columns),
    Migration(6, "listings", _add_listing_indexes),
    Migration(11, "audit: seals", _add_seals),
    Migration(12, "history: worker", _add_worker),
    Migration(14, "keys by their bytes", _compare_by_bytes),
    Migration(18, "records: application", _add_application),
)
