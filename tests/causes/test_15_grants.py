"""The script of grants in the docs, as it is, lets a bare role do everything but change tables."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import Engine

from holdfast import EngineProvider, Holdfast
from holdfast.core.errors import ConfigurationError, WriteError
from holdfast.jobs.grpc.server import JobsServer
from tests.components.processes import REPOSITORY, wait_until
from tests.runtime.workloads import running

SCRIPT = (REPOSITORY / "docs" / "grants" / "postgres-worker.sql").read_text()
WORKLOADS = ("trigger", "job", "processor", "engine", "periodic", "limited")
_GROUP = "holdfast_worker"


def only_statements(script: str) -> list[str]:
    return [each.strip() for each in re.sub(r"--[^\n]*", "", script).split(";") if each.strip()]


class Bare:
    """A database whose owner has migrated, and a role that has nothing but the script's group."""

    def __init__(self, url: str) -> None:
        self.superuser = create_engine(url)
        suffix = uuid.uuid4().hex[:12]
        self.owner, self.role = f"owner_{suffix}", f"shop_{suffix}"
        self.url = {name: make_url(url).set(username=name).render_as_string() for name in (self.owner, self.role)}
        self.providers: list[EngineProvider] = []
        self.say(
            self.superuser,
            f"CREATE ROLE {self.owner} LOGIN",
            f"CREATE ROLE {self.role} LOGIN",
            f"DROP ROLE IF EXISTS {_GROUP}",
            f"CREATE ROLE {_GROUP} NOLOGIN",
            f"GRANT {_GROUP} TO {self.role}",
            f"GRANT pg_read_all_stats TO {_GROUP}",
            f"GRANT CREATE ON SCHEMA public TO {self.owner}",
        )

    def say(self, engine: Engine, *statements: str) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def as_owner(self, *statements: str) -> None:
        engine = create_engine(self.url[self.owner])
        self.say(engine, *statements)
        engine.dispose()

    def app(self, name: str, **options: Any) -> Holdfast:
        provider = EngineProvider()
        self.providers.append(provider)
        return Holdfast(self.url[name], app_name="shop", engine_provider=provider, **options)

    def close(self) -> None:
        for provider in self.providers:
            provider.dispose_all()
        for name in self.role, _GROUP, self.owner:
            self.say(self.superuser, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")
        self.superuser.dispose()


@pytest.fixture
def bare(empty_postgres_url: str) -> Iterator[Bare]:
    made = Bare(empty_postgres_url)
    made.app(made.owner).migrate()
    made.as_owner(
        "CREATE TABLE orders (id bigint PRIMARY KEY, changed timestamptz NOT NULL DEFAULT now())",
        "CREATE INDEX orders_changed ON orders (changed, id)",
        "CREATE TABLE effects (work text NOT NULL)",
        f"GRANT SELECT, INSERT ON orders, effects TO {made.role}",
    )
    yield made
    made.close()


def declared(app: Holdfast) -> dict[str, Any]:
    """Declare all that there is; each handler writes down that it was called, in its transaction."""

    def note(work: str, context: Any) -> None:
        context.transaction.execute(text("INSERT INTO effects (work) VALUES (:work)"), {"work": work})

    watching = app.trigger("orders", cursor="changed", poll_seconds=0.02, horizon_margin_seconds=0.1)
    watching(lambda events, context: note("trigger", context))
    app.processor("totals", poll_seconds=0.02)(lambda messages, context: note("processor", context))
    app.engine("mail", max_retry_attempts=5)(lambda context, message: note("engine", context))
    greet = app.job("greet", name="greet")(lambda context: note("job", context))
    app.periodic(app.job("greet", name="tick")(lambda context: note("periodic", context)), "* * * * * *")
    limiting = app.job("limited", name="limited", concurrency_per_key=1, rate_per_key=(100, 1))
    limited = limiting(lambda context: note("limited", context))
    failing = app.job("greet", name="fail", max_attempts=1)(fail)
    return {"greet": greet, "limited": limited, "fail": failing}


def fail(context: Any) -> None:
    raise ValueError("no")


def test_15_the_script_of_the_docs_is_all_that_workers_need(bare: Bare, caplog: pytest.LogCaptureFixture) -> None:
    bare.as_owner(SCRIPT)
    app = bare.app(bare.role, outbox_retention=timedelta(days=1))
    jobs = declared(app)
    app.validate()
    with app.database.begin() as connection:
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        app.outbox.append(connection, "Placed", {"id": 1})
        jobs["greet"].enqueue(connection=connection)
        app.engines.send("mail", {}, connection=connection)
    jobs["greet"].options(unique_key="one", unique_seconds=0.001).enqueue()
    jobs["greet"].enqueue_many([{}] * 3)
    jobs["limited"].options(key="tenant").enqueue()
    jobs["fail"].enqueue()
    done = "SELECT work FROM effects"
    started = threading.Event()
    with running(app, drain_seconds=5, on_started=started.set):
        wait_until(lambda: set(WORKLOADS) <= set(read(bare, done)), "all workloads")
        wait_until(lambda: read(bare, "SELECT status FROM holdfast_dead_letters") == ["Pending"], "the dead letter")
    operate(app)
    assert "permission denied" not in caplog.text
    assert [record.getMessage() for record in caplog.records if "does not let" in record.getMessage()] == []


def operate(app: Holdfast) -> None:
    """Do what workers do now and then, and what operators do, whose changes are audited."""
    for chore in (*app._workloads.chores(), *app.record_chores):
        chore.task()
    app.prune()
    app.jobs.pause("greet")
    app.jobs.resume("greet")
    [letter] = app.dead_letters.page().items
    app.redrive.retry(letter, "operator")


def read(bare: Bare, query: str) -> list[str]:
    with bare.superuser.connect() as connection:
        return list(connection.execute(text(query)).scalars())


def test_15_a_jobs_server_serves_with_the_script(bare: Bare) -> None:
    bare.as_owner(SCRIPT)
    server = JobsServer(bare.app(bare.role).jobs.store, "127.0.0.1:0")
    server.start()
    server.stop()


def test_15_the_script_lets_nobody_change_tables(bare: Bare) -> None:
    bare.as_owner(SCRIPT)
    app = bare.app(bare.role)
    with app.database.connect() as connection, pytest.raises(Exception, match="must be owner of"):
        connection.execute(text("ALTER TABLE holdfast_jobs ADD COLUMN mine int"))
    bare.as_owner("DELETE FROM holdfast_migrations WHERE number = 20")
    with pytest.raises(WriteError, match="Check the role's grants"):
        app.migrate()


def test_15_without_the_script_nothing_is_begun(bare: Bare) -> None:
    app = bare.app(bare.role)
    app.job("greet")(lambda: None)
    with pytest.raises(Exception, match="permission denied for table holdfast_migrations"):
        app.validate()
    bare.as_owner("GRANT SELECT ON holdfast_migrations TO holdfast_worker")
    with pytest.raises(ConfigurationError, match="could not record"):
        app.validate()


@pytest.mark.parametrize("statement", only_statements(SCRIPT))
def test_15_the_script_grants_to_its_own_role_alone(statement: str) -> None:
    assert re.fullmatch(
        r"GRANT (SELECT|INSERT|UPDATE|DELETE|USAGE)(, (SELECT|INSERT|UPDATE|DELETE))* ON [\w\s,]+ TO holdfast_worker",
        " ".join(statement.split()),
    )
