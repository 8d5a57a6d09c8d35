"""An application with all four workloads, and what goes wrong with its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from holdfast import EngineProvider, Holdfast
from tests.components.processes import wait_until
from tests.runtime.workloads import running

WORKLOADS = ("trigger", "job", "processor", "engine")
_TABLES = ("holdfast_state", "holdfast_jobs", "holdfast_processor_checkpoints", "holdfast_history")
_IDS = {
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
}


class Fleet:
    """The four workloads in one database: the owner adds items, the worker, perhaps another role, has them done."""

    def __init__(self, owner_url: str, worker_url: str) -> None:
        self.owner_url, self.worker_url = owner_url, worker_url
        self.done: set[str] = set()
        owner = self.application(owner_url)
        self.dialect = owner.database.dialect.name
        with owner.database.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE orders (id {_IDS[self.dialect]}, note varchar(9))")

    def application(self, url: str) -> Holdfast:
        app = Holdfast(url, engine_provider=EngineProvider(), app_name="fleet")
        app.trigger("orders", cursor="id", poll_seconds=0.01)(lambda events: self.done.add("trigger"))
        app.processor("totals", poll_seconds=0.01)(lambda messages: self.done.add("processor"))
        app.engine("mail", schedule="0 0 0 1 1 *", poll_seconds=0.01)(lambda context, message: self.done.add("engine"))
        app.job("greet", name="greet")(self.greet)
        return app

    def greet(self) -> None:
        self.done.add("job")

    def add(self) -> None:
        """Have something wait for each workload."""
        app = self.application(self.owner_url)
        with app.database.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders (note) VALUES ('new')")
            app.outbox.append(connection, "paid", {})
        app.jobs.definitions[0].enqueue()
        app.engines.send("mail", {})
        app._provider.dispose_all()

    @contextmanager
    def at_work(self, **options: Any) -> Iterator[Holdfast]:
        """Run the worker beside the block."""
        app = self.application(self.worker_url)
        with running(app, drain_seconds=1, **options):
            yield app
        app._provider.dispose_all()

    def warm_up(self) -> None:
        """Let everything work once, so that all is registered."""
        self.add()
        with self.at_work():
            wait_until(lambda: self.done == set(WORKLOADS), "everything to work once")

    def do(self, *statements: str) -> None:
        app = self.application(self.owner_url)
        with app.database.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement.replace("%", "%%"))
        app._provider.dispose_all()


@contextmanager
def full(fleet: Fleet) -> Iterator[None]:
    """Have the database find no room for any change of Holdfast's tables."""
    changes = ("INSERT", "UPDATE", "DELETE")
    if fleet.dialect == "sqlite":
        fleet.do("CREATE TABLE ballast (content BLOB)")
        add = "BEGIN INSERT INTO ballast VALUES (zeroblob(1000000)); END"
        fleet.do(*(f"CREATE TRIGGER full_{t}_{c} AFTER {c} ON {t} {add}" for t in _TABLES for c in changes))
        with _said_to_sqlite("PRAGMA max_page_count = 1"):  # no fewer than there are
            yield
        return
    if fleet.dialect == "postgresql":
        refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'could not extend file: "
        fleet.do(f"{refuse}No space left on device' USING ERRCODE = 'disk_full'; END $$")
        add = "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
    else:
        add = "FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'"
    fleet.do(*(f"CREATE TRIGGER full_{t}_{c} BEFORE {c} ON {t} {add}" for t in _TABLES for c in changes))
    yield


@contextmanager
def read_only(fleet: Fleet, worker: str | None) -> Iterator[None]:
    """Have the database take no writes of the worker's."""
    if worker is None:
        with _said_to_sqlite("PRAGMA query_only = ON"):
            yield
    elif fleet.dialect == "postgresql":
        fleet.do(f"ALTER ROLE {worker} SET default_transaction_read_only = on")
        yield
    else:
        fleet.do("SET GLOBAL read_only = 1")
        try:
            yield
        finally:
            fleet.do("SET GLOBAL read_only = 0")


@contextmanager
def _said_to_sqlite(statement: str) -> Iterator[None]:
    def say(connection: Any, record: object) -> None:
        connection.execute(statement)

    event.listen(Engine, "connect", say)
    try:
        yield
    finally:
        event.remove(Engine, "connect", say)
