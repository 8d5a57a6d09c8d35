"""``DbWriter``: rows in, one by one or many at a time, alone or in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import Table, and_, bindparam, delete, insert, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql.expression import Executable

from ..core.config import DbConfig
from ..core.errors import ConfigurationError, WriteError
from ..database.errors import advice, reason
from ..database.pools import EngineProvider, writing
from .base import TableBinding, check_columns, check_key, require_dict
from .keys import (
    KEYS,
    WITHOUT_KEY,
    OutdatedKeyError,
    RowData,
    by_key,
    fitting_rows,
    in_listed_keys,
    key_columns,
    listed_keys,
    require_one_row_each,
    require_values,
    with_key_names,
)
from .open_transaction import OpenTransaction
from .session_zone import require_utc_for_moments
from .upsert import check_conflict_columns, naming_another_row, upsert_statement

_MYSQL = ("mysql", "mariadb")
_WORDS = {"insert": "insert into", "upsert": "upsert into", "update": "update of", "delete": "delete from"}


class DbWriter(TableBinding):
    """Writes rows of one table. Make one per invocation, or use ``with``.

    Every call is a transaction of its own, unless it is made through the handle of ``with writer.transaction() as tx``.
    The batch forms are all or nothing, and hand all rows to the driver at once: it sends them in one go on PostgreSQL,
    and as statements of many rows on MySQL and MariaDB, except for updates, which go there one by one.
    """

    _error_class = WriteError
    _after_a_break = "Nothing was written: run it again, with the whole transaction() if it is part of one."

    def __init__(
        self,
        *,
        url: str | None = None,
        table: str,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
        db_config: DbConfig | None = None,
    ) -> None:
        super().__init__(
            url=url, table=table or "", schema=schema, engine_provider=engine_provider, db_config=db_config
        )
        self._open: OpenTransaction | None = None
        self._was_closed_inside = False

    @contextmanager
    def transaction(self) -> Iterator[DbWriter]:
        """Commit all writes made through the handle together; roll all of them back when the block raises.

        The handle, ``with writer.transaction() as tx:``, is a writer whose every write is part of the transaction,
        whichever thread or task makes it. Writes through this writer itself are part of it where the block was opened;
        from anywhere else (another thread or task, a dependency that a web framework entered on a thread of its own)
        they are refused while it is open. A write that fails dooms the block, whether or not its error is caught: half
        of what was meant to go together is never kept.

        Raises:
            WriteError: one is open already, a write inside it failed, or the commit did.
        """
        self._require_no_other()
        with self._translated("The transaction"):
            self._open = active = OpenTransaction(table=self._table(), connection=self._begun())
        active.enter()
        try:
            yield TransactionWriter(self, active)
            if not self._was_closed_inside:
                _commit_block(active)
        finally:
            active.leave()
            self._end_transaction()

    def close(self) -> None:
        """Close what this object owns. Inside ``transaction()`` it rolls back and refuses later writes in the block."""
        if self._open is not None:
            self._was_closed_inside = True
            self._end_transaction()
        super().close()

    def insert(self, *, data: RowData) -> None:
        """Insert one row.

        Raises:
            ConfigurationError: the table has no such column.
            WriteError: the database refused it, for example because the key exists.
        """
        self.insert_many(rows=[data])

    def insert_many(self, *, rows: list[RowData]) -> None:
        """Insert rows with the same columns, all or none. An empty list is a no-op.

        Raises:
            ConfigurationError: the table has no such column.
            WriteError: rows have different columns, or the database refused one.
        """
        with self._writing("insert", rows):
            self._write_many("insert", rows, lambda table: insert(table).inline())  # asks for no key in return

    def upsert(self, *, data: RowData, conflict_columns: list[str]) -> None:
        """Insert one row, or update the one that has the same ``conflict_columns``. No other row is ever updated.

        Raises:
            ConfigurationError: an unknown column, or a dialect without upsert.
            WriteError: the database refused it, for example because no unique index covers ``conflict_columns``, or
                another unique key has the row's value already.
        """
        self.upsert_many(rows=[data], conflict_columns=conflict_columns)

    def upsert_many(self, *, rows: list[RowData], conflict_columns: list[str]) -> None:
        """Upsert rows with the same columns, all or none; of rows with an equal key the last one wins.

        Raises:
            ConfigurationError: an unknown column, a conflict column without a value, or a dialect without upsert.
            WriteError: rows have different columns, or the database refused one.
        """

        def build(table: Table) -> Executable:
            check_columns(table, conflict_columns, "conflict_columns")
            require_values(rows, conflict_columns, "The conflict column")
            return upsert_statement(table, list(rows[0]), conflict_columns, self._engine.dialect)

        with self._writing("upsert", rows):
            check_conflict_columns(conflict_columns)
            with naming_another_row(str(self._table_name), conflict_columns):
                self._write_many("upsert", rows, build, partial(fitting_rows, names=conflict_columns))

    def update(self, *, data: RowData, pk: RowData) -> None:
        """Set columns of the row with this primary key. A no-op when there is none.

        Raises:
            ConfigurationError: an unknown column, or ``pk`` is not exactly the primary key, with values of its types.
            WriteError: the database refused it.
        """

        def write(table: Table) -> None:
            require_dict(data, "data")
            check_columns(table, data)
            check_key(table, pk, WITHOUT_KEY)
            require_values([pk], pk, "The key")
            new_values: RowData = {name: bindparam(name) for name in data}
            statement = update(table).where(*by_key(table)).values(new_values)
            self._execute(table, statement, {**data, **with_key_names(table, [pk])[0]}, keys=1)

        with self._writing("update", [data]):
            self._with_table(write)

    def update_many(self, *, rows: list[RowData]) -> None:
        """Update rows that hold their primary key and the columns to set, all or none. An empty list is a no-op.

        Raises:
            ConfigurationError: an unknown column, or a row without its whole primary key.
            WriteError: rows have different columns, or the database refused one.
        """

        def build(table: Table) -> Executable:
            key = key_columns(table)
            check_key(table, {name: None for name in rows[0] if name in key}, WITHOUT_KEY)
            require_values(rows, key, "The key")
            changed = [name for name in rows[0] if name not in key]
            if not changed:
                raise ConfigurationError("update_many rows hold nothing but the primary key: there is nothing to set.")
            new_values: RowData = {name: bindparam(name) for name in changed}
            return update(table).where(*by_key(table)).values(new_values)

        with self._writing("update", rows):
            self._write_many("update", rows, build, with_key_names)

    def delete(self, *, pk: RowData) -> None:
        """Delete the row with this primary key. A no-op when there is none.

        Raises:
            ConfigurationError: ``pk`` is not exactly the primary key, with values of its types.
            WriteError: the database refused it.
        """
        self.delete_many(pks=[pk])

    def delete_many(self, *, pks: list[RowData]) -> None:
        """Delete rows by their primary keys, all or none. An empty list is a no-op.

        Raises:
            ConfigurationError: one is not exactly the primary key, with values of its types.
            WriteError: the database refused one.
        """

        def build(table: Table) -> Executable:
            check_key(table, pks[0], WITHOUT_KEY)
            require_values(pks, pks[0], "The key")
            return delete(table).where(in_listed_keys(table) if is_listed else and_(*by_key(table)))

        with self._writing("delete", pks):
            is_listed = bool(pks) and self._engine.dialect.name in _MYSQL
            as_parameters = listed_keys if is_listed else with_key_names
            self._write_many("delete", pks, build, as_parameters)

    @contextmanager
    def _writing(self, verb: str, rows: object) -> Iterator[None]:
        """Name what failed, and let it doom the transaction() it is part of."""
        self._require_open()
        count = len(rows) if isinstance(rows, (list, tuple)) else 1
        after = f" None of the {count} rows was written." if count > 1 else ""
        active = self._joined
        try:
            with self._translated(f"The {_WORDS[verb]} '{self._table_name}'", after):
                yield
        except BaseException:
            if active is not None:
                active.has_failed = True
            raise

    def _write_many(
        self,
        verb: str,
        rows: Sequence[RowData],
        build: Callable[[Table], Executable],
        as_parameters: Callable[[Table, Sequence[RowData]], list[RowData]] = lambda _, rows: list(rows),
    ) -> None:
        if not rows:
            return
        _require_dicts(rows)
        _require_same_columns(verb, rows)
        keys = len(rows) if verb in ("update", "delete") else None

        def write(table: Table) -> None:
            if verb != "delete":
                check_columns(table, rows[0])
            self._execute(table, build(table), as_parameters(table, rows), keys)

        self._with_table(write)

    def _execute(self, table: Table, statement: Executable, parameters: Any, keys: int | None = None) -> None:
        """Run a statement in the open transaction, or in one of its own.

        ``keys`` is how many rows it may meet, where it goes by their keys.
        """
        active = self._joined
        if active is None:
            with writing(self._engine) as connection:
                connection.begin()
                _send(connection, table, statement, parameters, keys)
                _commit(connection)
            return
        with active.turn:
            active.require_open()  # it may have ended since this write began, on another thread
            try:
                _send(active.connection, table, statement, parameters, keys)
            except OutdatedKeyError:  # rows were changed that nobody meant
                active.has_failed = True
                raise

    @property
    def _joined(self) -> OpenTransaction | None:
        """Return the open transaction when a write of the caller's is part of it."""
        active = self._open
        return active if active is not None and active.is_opened_here else None

    def _table(self) -> Table:
        return super()._table() if self._joined is None else self._joined.table

    def _look_again(self, stale: Table, error: Exception) -> Table:
        """In a transaction, try again what never left us; what the database has refused has doomed it."""
        active = self._joined
        if active is None:
            return super()._look_again(stale, error)
        self._forget(stale)
        if isinstance(error, DBAPIError):
            raise WriteError(
                f"A write inside a transaction() failed: {reason(error)}. If '{stale.name}' was altered meanwhile, run "
                "the transaction again: the table will be looked up anew."
            ) from error
        active.table = self._look_beside_the_pool(stale)
        return active.table

    def _require_open(self) -> None:
        if self._was_closed_inside:
            raise WriteError(
                "This writer was closed inside its transaction(), which was rolled back. Leave the block and use a new "
                "writer."
            )
        joined = self._joined
        if joined is not None:
            joined.require_open()
        elif self._open is not None:
            raise WriteError(
                "A transaction() is open on this writer, and this write, from another thread, task or context than its "
                "block, would be no part of it: write through its handle, as in with writer.transaction() as tx: "
                "tx.insert(…), or through another writer."
            )

    def _require_no_other(self) -> None:
        """Check that a transaction can be opened."""
        if self._open is not None:
            raise WriteError(
                "A transaction() is already active on this writer: they do not nest, and another thread or task needs "
                "a writer of its own."
            )
        self._require_open()

    def _begun(self) -> Connection:
        connection = writing(self._engine)
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection

    def _end_transaction(self) -> None:
        active, self._open = self._open, None
        if active is None:
            return
        with active.turn:  # not under a statement that another thread has just sent through the handle
            active.has_ended = True
            try:
                active.connection.close()  # rolls back what was not committed
            except SQLAlchemyError:
                active.connection.invalidate()


class TransactionWriter(DbWriter):
    """The handle of a ``transaction()``: its writes are part of that one, whichever thread or task makes them.

    Its writes come one after the other. Closing it closes the writer it came from.
    """

    def __init__(self, writer: DbWriter, active: OpenTransaction) -> None:
        vars(self).update(vars(writer))
        self._writer = writer
        self._active = active

    def close(self) -> None:
        """Close the writer: the transaction is rolled back, and later writes in the block are refused."""
        self._writer.close()

    @property
    def _joined(self) -> OpenTransaction | None:
        return self._active

    def _require_open(self) -> None:
        self._was_closed_inside = self._writer._was_closed_inside
        super()._require_open()

    def _require_no_other(self) -> None:
        self._require_open()
        super()._require_no_other()


def _commit_block(active: OpenTransaction) -> None:
    with active.turn:
        active.require_open()
        _commit(active.connection)
        active.has_ended = True


def _send(connection: Connection, table: Table, statement: Executable, parameters: Any, keys: int | None) -> None:
    """Send all rows with one statement where the driver can.

    Those of MySQL stumble over a % in a column name, and a list of keys fills a statement by itself.
    """
    require_utc_for_moments(connection, table, parameters if isinstance(parameters, list) else [parameters])
    if isinstance(parameters, list) and connection.dialect.name in _MYSQL and _goes_alone(parameters[0]):
        changed = sum(connection.execute(statement, row).rowcount for row in parameters)
    else:
        changed = connection.execute(statement, parameters).rowcount
    if keys is not None:
        require_one_row_each(connection, table, changed, keys)


def _goes_alone(row: RowData) -> bool:
    return any("%" in name or name == KEYS for name in map(str, row))


def _commit(connection: Connection) -> None:
    """Commit.

    Raises:
        WriteError: it failed. When its answer was lost, the message says that nobody knows what came of it.
    """
    try:
        connection.commit()
    except DBAPIError as error:
        if error.connection_invalidated:
            raise WriteError(
                f"The connection broke during the commit ({reason(error)}), so that it may or may not have taken "
                "effect. Read the rows before you write them again."
            ) from error
        raise WriteError(f"The commit failed: {reason(error)}.{advice(error)}") from error


def _require_dicts(rows: object) -> None:
    if not isinstance(rows, (list, tuple)):
        raise ConfigurationError(f"A batch must be a list of dicts, not {type(rows).__name__}. Nothing was written.")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ConfigurationError(
                f"A row must be a dict, not {type(row).__name__} (row {number} of {len(rows)}). Nothing was written."
            )


def _require_same_columns(verb: str, rows: Sequence[RowData]) -> None:
    expected = rows[0].keys()
    for number, row in enumerate(rows, start=1):
        if row.keys() != expected:
            raise WriteError(
                f"The rows of a batch {verb} must all have the same columns, but row {number} of {len(rows)} has "
                f"({', '.join(map(str, row))}) and row 1 has ({', '.join(map(str, expected))}). Nothing was written."
            )
