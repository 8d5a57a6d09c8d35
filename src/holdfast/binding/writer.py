"""``DbWriter``: rows in, one by one or many at a time, alone or in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, bindparam, delete, insert, tuple_, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql.expression import Executable

from ..core.config import DbConfig
from ..core.driver_errors import reason
from ..core.engine import EngineProvider, writing
from ..core.errors import ConfigurationError, WriteError
from .base import TableBinding, check_columns, check_key, require_dict
from .tables import never_sent
from .upsert import check_conflict_columns, upsert_statement

RowData = dict[str, object]
_KEY_PREFIX = "holdfast_key_"
_KEYS = "holdfast_keys"
_MOST_KEYS = 1000
_MYSQL = ("mysql", "mariadb")


@dataclass(slots=True)
class _OpenTransaction:
    """A transaction() block. It keeps the table it began with: looking it up would need a second connection."""

    connection: Connection
    table: Table
    has_failed: bool = False


class DbWriter(TableBinding):
    """Writes rows of one table. Make one per invocation (or use ``with``); not for sharing between threads.

    Every call is a transaction of its own, unless it is made inside ``with writer.transaction():``. The batch forms are
    all or nothing, and hand all rows to the driver at once: it sends them in one go on PostgreSQL, and as statements of
    many rows on MySQL and MariaDB, except for updates, which go there one by one.
    """

    _error_class = WriteError

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
        self._open: _OpenTransaction | None = None
        self._was_closed_inside = False

    @contextmanager
    def transaction(self) -> Iterator[DbWriter]:
        """Commit every write made inside the block together; roll all of them back when it raises.

        A write that the database refuses dooms the block, whether or not its error is caught: some databases have
        undone everything before it by then.

        Raises:
            WriteError: one is open already, a write inside it failed, or the commit did.
        """
        self._require_open()
        if self._open is not None:
            raise WriteError("A transaction() is already active on this writer: they do not nest.")
        with self._translated("The transaction"):
            self._open = active = _OpenTransaction(table=self._table(), connection=self._begun())
        try:
            yield self
            if not self._was_closed_inside:
                self._commit(active)
        finally:
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
        self._write_many("insert", rows, lambda table: insert(table).inline())  # asks for no key in return

    def upsert(self, *, data: RowData, conflict_columns: list[str]) -> None:
        """Insert one row, or update the one that has the same ``conflict_columns``.

        Raises:
            ConfigurationError: an unknown column, or a dialect without upsert.
            WriteError: the database refused it, for example because no unique index covers ``conflict_columns``.
        """
        self.upsert_many(rows=[data], conflict_columns=conflict_columns)

    def upsert_many(self, *, rows: list[RowData], conflict_columns: list[str]) -> None:
        """Upsert rows with the same columns, all or none; of rows with an equal key the last one wins."""
        check_conflict_columns(conflict_columns)

        def build(table: Table) -> Executable:
            check_columns(table, conflict_columns, "conflict_columns")
            return upsert_statement(table, list(rows[0]), conflict_columns, self._engine.dialect)

        self._write_many("upsert", rows, build)

    def update(self, *, data: RowData, pk: RowData) -> None:
        """Set columns of the row with this primary key. A no-op when there is none.

        Raises:
            ConfigurationError: an unknown column, or ``pk`` is not exactly the primary key.
            WriteError: the database refused it.
        """

        def build(table: Table) -> Executable:
            require_dict(data, "data")
            check_columns(table, data)
            check_key(table, pk)
            return update(table).where(*_by_key(table)).values(data)

        self._require_open()
        with self._translated(f"The update of '{self._table_name}'"):
            self._with_table(lambda table: self._execute(build(table), _with_key_names(table, [pk])[0]))

    def update_many(self, *, rows: list[RowData]) -> None:
        """Update rows that hold their primary key and the columns to set, all or none. An empty list is a no-op."""

        def build(table: Table) -> Executable:
            key = [column.name for column in table.primary_key.columns]
            check_key(table, {name: None for name in rows[0] if name in key})
            changed = [name for name in rows[0] if name not in key]
            if not changed:
                raise ConfigurationError("update_many rows hold nothing but the primary key: there is nothing to set.")
            new_values: RowData = {name: bindparam(name) for name in changed}
            return update(table).where(*_by_key(table)).values(new_values)

        self._write_many("update", rows, build, _with_key_names)

    def delete(self, *, pk: RowData) -> None:
        """Delete the row with this primary key. A no-op when there is none.

        Raises:
            ConfigurationError: ``pk`` is not exactly the primary key.
            WriteError: the database refused it.
        """
        self.delete_many(pks=[pk])

    def delete_many(self, *, pks: list[RowData]) -> None:
        """Delete rows by their primary keys, all or none. An empty list is a no-op."""

        def build(table: Table) -> Executable:
            check_key(table, pks[0])
            return delete(table).where(_in_listed_keys(table) if is_listed else and_(*_by_key(table)))

        is_listed = bool(pks) and self._engine.dialect.name in _MYSQL
        as_parameters = _listed_keys if is_listed else _with_key_names
        self._write_many("delete", pks, build, as_parameters, checks_columns=False)

    def _write_many(
        self,
        verb: str,
        rows: Sequence[RowData],
        build: Callable[[Table], Executable],
        as_parameters: Callable[[Table, Sequence[RowData]], list[RowData]] = lambda _, rows: list(rows),
        *,
        checks_columns: bool = True,
    ) -> None:
        if not rows:
            return
        self._require_open()
        _require_dicts(rows)
        _require_same_columns(verb, rows)

        def write(table: Table) -> None:
            if checks_columns:
                check_columns(table, rows[0])
            self._execute(build(table), as_parameters(table, rows))

        with self._translated(f"The {verb} into '{self._table_name}'"):
            self._with_table(write)

    def _execute(self, statement: Executable, parameters: Any) -> None:
        """Run a statement in the open transaction, or in one of its own."""
        if self._open is None:
            with writing(self._engine) as connection, connection.begin():
                _send(connection, statement, parameters)
            return
        try:
            _send(self._open.connection, statement, parameters)
        except Exception as error:
            self._open.has_failed = not never_sent(error)
            raise

    def _table(self) -> Table:
        return super()._table() if self._open is None else self._open.table

    def _look_again(self, stale: Table, error: Exception) -> Table:
        """In a transaction, try again what never left us; what the database has refused has doomed it."""
        if self._open is None:
            return super()._look_again(stale, error)
        self._forget(stale)
        if isinstance(error, DBAPIError):
            raise WriteError(
                f"A write inside a transaction() failed: {reason(error)}. If '{stale.name}' was altered meanwhile, run "
                "the transaction again: the table will be looked up anew."
            ) from error
        self._open.table = self._look_beside_the_pool(stale)
        return self._open.table

    def _require_open(self) -> None:
        if self._was_closed_inside:
            raise WriteError(
                "This writer was closed inside its transaction(), which was rolled back. Leave the block and use a new "
                "writer."
            )
        if self._open is not None and self._open.has_failed:
            raise _doomed()

    def _begun(self) -> Connection:
        connection = writing(self._engine)
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection

    def _commit(self, active: _OpenTransaction) -> None:
        if active.has_failed:
            raise _doomed()
        with self._translated("The commit"):
            active.connection.commit()

    def _end_transaction(self) -> None:
        active, self._open = self._open, None
        if active is None:
            return
        try:
            active.connection.close()  # rolls back what was not committed
        except SQLAlchemyError:
            active.connection.invalidate()


def _send(connection: Connection, statement: Executable, parameters: Any) -> None:
    """Send all rows with one statement where the driver can.

    Those of MySQL stumble over a % in a column name, and a list of keys fills a statement by itself.
    """
    if isinstance(parameters, list) and connection.dialect.name in _MYSQL and _goes_alone(parameters[0]):
        for row in parameters:
            connection.execute(statement, row)
        return
    connection.execute(statement, parameters)


def _goes_alone(row: RowData) -> bool:
    return any("%" in name or name == _KEYS for name in map(str, row))


def _doomed() -> WriteError:
    return WriteError(
        "An earlier write inside this transaction() failed, so nothing of it can be kept. Let that error leave the "
        "block, or make writes that may fail outside of it."
    )


def _key_names(table: Table) -> dict[str, str]:
    """Return for each key column what its value is called as a parameter: nothing that a column is called."""
    prefix = _KEY_PREFIX
    while any(name.startswith(prefix) for name in map(str, table.c.keys())):
        prefix += "_"
    return {column.name: f"{prefix}{number}" for number, column in enumerate(table.primary_key.columns)}


def _by_key(table: Table) -> list[Any]:
    return [table.c[name] == bindparam(parameter) for name, parameter in _key_names(table).items()]


def _with_key_names(table: Table, rows: Sequence[RowData]) -> list[RowData]:
    names = _key_names(table)
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def _in_listed_keys(table: Table) -> ColumnElement[bool]:
    """Return the condition that a row's key is in a list: MySQL's drivers would send a statement for each key."""
    columns = list(table.primary_key.columns)
    key: ColumnElement[Any] = columns[0] if len(columns) == 1 else tuple_(*columns)
    return key.in_(bindparam(_KEYS, type_=key.type, expanding=True))


def _listed_keys(table: Table, pks: Sequence[RowData]) -> list[RowData]:
    names = [column.name for column in table.primary_key.columns]
    keys = [pk[names[0]] if len(names) == 1 else tuple(pk[name] for name in names) for pk in pks]
    return [{_KEYS: keys[at : at + _MOST_KEYS]} for at in range(0, len(keys), _MOST_KEYS)]


def _require_dicts(rows: object) -> None:
    if not isinstance(rows, (list, tuple)):
        raise ConfigurationError(f"A batch must be a list of dicts, not {type(rows).__name__}. Nothing was written.")
    for row in rows:
        if not isinstance(row, dict):
            raise ConfigurationError(f"A row must be a dict, not {type(row).__name__}. Nothing was written.")


def _require_same_columns(verb: str, rows: Sequence[RowData]) -> None:
    expected = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != expected:
            raise WriteError(
                f"The rows of a batch {verb} must all have the same columns, but row {number} has "
                f"({', '.join(map(str, row))}) and the first has ({', '.join(map(str, expected))}). Nothing was "
                "written."
            )
