"""Two nodes of Galera that both take writes: no lock of the one keeps the other out, conflicts show at the COMMIT."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from holdfast import EngineProvider, Holdfast
from holdfast.core.errors import DbError, UndoneError
from holdfast.database import migrations
from holdfast.database.errors import Kind, kind_of
from holdfast.database.repeating import repeated
from holdfast.outbox import processors
from holdfast.runtime.transaction import HandlerTransaction
from tests.components.galera import GaleraCluster, GaleraNode
from tests.components.processes import wait_until
from tests.fleets.fleet import Fleet, accepted, refused
from tests.runtime.workloads import running

MIGRATING = 4
ITEMS = 40
STARTS = 5
PROVED = 3000
_EFFECTS = "CREATE TABLE effects (id bigint AUTO_INCREMENT PRIMARY KEY, work varchar(20) NOT NULL, n bigint NOT NULL)"
_COUNTERS = "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL)"

pytestmark = pytest.mark.component("galera")


class Nodes:
    """A database of the cluster, and applications on each of its nodes."""

    def __init__(self, cluster: GaleraCluster) -> None:
        self.cluster = cluster
        self.name = cluster.first.create_database()
        self.providers: list[EngineProvider] = []
        self.first, self.second = (create_engine(node.url(self.name)) for node in cluster.nodes)
        wait_until(lambda: _answers(self.second), "the database on the second node")

    def app(self, node: GaleraNode, **options: Any) -> Holdfast:
        provider = EngineProvider()
        self.providers.append(provider)
        return Holdfast(node.url(self.name), app_name="fleet", engine_provider=provider, **options)

    def migrated(self) -> Nodes:
        self.app(self.cluster.first).migrate()
        self.do(_EFFECTS)
        self.do(
            "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL)", "INSERT INTO counters VALUES (1, 0)"
        )
        wait_until(lambda: self.rows("SELECT n FROM counters", self.second) == [(0,)], "the tables on the second node")
        return self

    def do(self, *statements: str) -> None:
        """Do something through the first node."""
        with self.first.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def rows(self, query: str, engine: Engine | None = None) -> list[tuple[Any, ...]]:
        try:
            with (engine or self.first).connect() as connection:
                return [tuple(row) for row in connection.execute(text(query))]
        except DBAPIError:  # the table is not there yet
            return []

    def effects(self) -> Counter[tuple[str, int]]:
        return Counter((str(work), int(n)) for work, n in self.rows("SELECT work, n FROM effects"))

    def close(self) -> None:
        for provider in self.providers:
            provider.dispose_all()
        for engine in self.first, self.second:
            engine.dispose()
        self.cluster.first.terminate_sessions(self.name)
        self.cluster.first.drop_database(self.name)


def _answers(engine: Engine) -> bool:
    try:
        engine.connect().close()
    except OperationalError:
        return False
    return True


@pytest.fixture
def empty_nodes(galera: GaleraCluster) -> Iterator[Nodes]:
    made = Nodes(galera)
    yield made
    made.close()


@pytest.fixture
def nodes(empty_nodes: Nodes) -> Nodes:
    return empty_nodes.migrated()


# Migrations


def migrate_everywhere(nodes: Nodes) -> list[int]:
    """Migrate from both nodes at once; return the numbers that both have then."""
    apps = [nodes.app(nodes.cluster.nodes[at % 2]) for at in range(MIGRATING)]
    gate = threading.Barrier(MIGRATING)

    def migrate(app: Holdfast) -> None:
        gate.wait(30)
        app.migrate()

    with ThreadPoolExecutor(MIGRATING) as threads:
        for done in [threads.submit(migrate, app) for app in apps]:
            done.result(timeout=60)
    numbers = [row[0] for row in nodes.rows("SELECT number FROM holdfast_migrations ORDER BY number")]
    wait_until(lambda: not apps[1].pending_migrations(), "the second node to have all")
    return numbers


def test_15_processes_on_both_nodes_migrate_at_once(empty_nodes: Nodes) -> None:
    numbers = migrate_everywhere(empty_nodes)
    assert len(numbers) == len(set(numbers)) == len(migrations_of(empty_nodes))


def migrations_of(nodes: Nodes) -> tuple[migrations.Migration, ...]:
    return nodes.app(nodes.cluster.first)._migrations()


def test_15_without_trying_again_a_node_that_was_overtaken_fails(
    galera: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_OVERTAKEN", frozenset())

    def fails() -> bool:
        nodes = Nodes(galera)
        try:
            migrate_everywhere(nodes)
        except DbError:
            return True
        finally:
            nodes.close()
        return False

    assert any(fails() for _ in range(10))


# Adding


def test_15_a_node_that_is_not_ready_is_asked_again(nodes: Nodes) -> None:
    app, met = nodes.app(nodes.cluster.second), list[Kind]()
    greet = app.job("greet", name="greet")(lambda: None)
    greet.enqueue()

    def become_ready(failure: Any) -> None:
        met.append(kind_of(failure.original_exception))
        nodes.cluster.second.set("wsrep_reject_queries", "NONE")

    event.listen(app.jobs.store.engine, "handle_error", become_ready)
    nodes.cluster.second.set("wsrep_reject_queries", "ALL")
    greet.enqueue()
    assert met == [Kind.NOT_READY]
    wait_until(lambda: nodes.rows("SELECT count(*) FROM holdfast_jobs") == [(2,)], "both jobs, on the other node too")


def test_15_jobs_that_both_nodes_add_under_one_key_are_one(nodes: Nodes) -> None:
    jobs = [nodes.app(node).job("mail", name="mail")(lambda n: None) for node in nodes.cluster.nodes]
    gate = threading.Barrier(len(jobs))

    def add(at: int) -> int:
        gate.wait(30)
        return sum(jobs[at].options(unique_key=str(n)).enqueue(n=n).is_new for n in range(ITEMS))

    with ThreadPoolExecutor(len(jobs)) as threads:
        added = [done.result(timeout=60) for done in [threads.submit(add, at) for at in range(len(jobs))]]
    found = "SELECT count(DISTINCT unique_key), count(*) FROM holdfast_jobs"
    wait_until(lambda: nodes.rows(found) == [(ITEMS, ITEMS)], "each job once")
    assert sum(added) == ITEMS


# Working


def working(nodes: Nodes, node: GaleraNode) -> Holdfast:
    """Return an application on a node whose handlers write down what they did, in their transaction."""
    app = nodes.app(node)

    def note(work: str, n: int, context: Any) -> None:
        context.transaction.execute(text("INSERT INTO effects (work, n) VALUES (:work, :n)"), {"work": work, "n": n})

    @app.job("fleet", name="fleet", max_attempts=1, transactional=True)
    def work(context: Any, n: int) -> None:
        note("job", n, context)

    @app.processor("fleet", poll_seconds=0.05)
    def process(messages: list[Any], context: Any) -> None:
        for message in messages:
            note("processor", message.data["n"], context)

    return app


def append(app: Holdfast, n: int) -> None:
    with app.database.begin() as connection:
        app.outbox.append(connection, "Placed", {"n": n})


@pytest.mark.parametrize("count", [2 * ITEMS, pytest.param(PROVED, marks=pytest.mark.prove)])
def test_15_workers_on_both_nodes_do_everything_once(nodes: Nodes, count: int) -> None:
    apps = [working(nodes, node) for node in nodes.cluster.nodes]

    def add(at: int) -> None:
        for n in range(at, count, 2):
            apps[at].jobs.definitions[0].enqueue(n=n)
            repeated(partial(append, apps[at], n))  # an application's own transaction is its own to try again

    wanted = Counter({(work, n): 1 for work in ("job", "processor") for n in range(count)})
    with running(apps[0], drain_seconds=5), running(apps[1], drain_seconds=5):
        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(add, at) for at in range(2)]:
                done.result(timeout=600)
        wait_until(lambda: set(nodes.effects()) >= set(wanted), "everything to be done", 300)
    assert nodes.effects() == wanted
    assert {status for (status,) in nodes.rows("SELECT DISTINCT status FROM holdfast_history")} == {"Succeeded"}
    assert nodes.rows("SELECT count(*) FROM holdfast_dead_letters") == [(0,)]


# Starting


def begin_everywhere(nodes: Nodes) -> list[DbError]:
    """Start an application on both nodes at once, which write down the same; return why one did not start."""
    apps = [nodes.app(node) for node in nodes.cluster.nodes]
    gate, failures = threading.Barrier(len(apps)), list[DbError]()

    def begin(app: Holdfast) -> None:
        app.processor("fleet")(lambda messages: None)
        app.job("limited", name="limited", concurrency=1)(lambda: None)
        gate.wait(30)
        try:
            app.run(handle_signals=False, drain_seconds=5, on_started=app.stop)
        except DbError as error:
            failures.append(error)

    with ThreadPoolExecutor(len(apps)) as threads:
        for done in [threads.submit(begin, app) for app in apps]:
            done.result(timeout=60)
    return failures


def began_everywhere(galera: GaleraCluster) -> list[DbError]:
    nodes = Nodes(galera).migrated()
    try:
        return begin_everywhere(nodes)
    finally:
        nodes.close()


def test_15_processes_on_both_nodes_start_at_once(galera: GaleraCluster) -> None:
    assert [error for _ in range(STARTS) for error in began_everywhere(galera)] == []


def test_15_without_trying_again_a_node_that_was_overtaken_does_not_start(
    galera: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "was_overtaken", lambda error: False)
    failures = (error for _ in range(4 * STARTS) for error in began_everywhere(galera))
    assert "1213" in str(next(failures, None))


# Conflicts


def one_job(nodes: Nodes, handle: Callable[[Any], None]) -> list[tuple[Any, ...]]:
    """Run one job that has one attempt on the second node; return how it ended."""
    app = nodes.app(nodes.cluster.second)
    app.job("count", name="count", max_attempts=1, transactional=True)(handle).enqueue()
    history = "SELECT status FROM holdfast_history"
    with running(app, drain_seconds=5):
        wait_until(lambda: nodes.rows(history), "the job to end")
    return nodes.rows(history)


def count_here(context: Any) -> None:
    context.transaction.execute(text("UPDATE counters SET n = n + 1 WHERE id = 1"))


def test_15_a_conflict_at_the_commit_is_no_attempt(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, met = HandlerTransaction._commit, list[BaseException]()

    def overtaken(transaction: HandlerTransaction) -> None:
        if not met:
            nodes.do("UPDATE counters SET n = n + 10 WHERE id = 1")
        try:
            commit(transaction)
        except UndoneError as error:
            met.append(error)
            raise

    monkeypatch.setattr(HandlerTransaction, "_commit", overtaken)
    assert one_job(nodes, count_here) == [("Succeeded",)]
    assert "1213" in str(met[0])
    wait_until(lambda: nodes.rows("SELECT n FROM counters") == [(11,)], "one of each")


def test_15_a_conflict_that_a_statement_meets_is_no_attempt(nodes: Nodes) -> None:
    calls = list[int]()

    def handle(context: Any) -> None:
        calls.append(1)
        count_here(context)
        if len(calls) == 1:
            nodes.do("UPDATE counters SET n = n + 10 WHERE id = 1")
            wait_until(lambda: nodes.rows("SELECT n FROM counters", nodes.second) == [(10,)], "it on this node")
            context.transaction.execute(text("SELECT 1"))

    assert one_job(nodes, handle) == [("Succeeded",)]
    wait_until(lambda: nodes.rows("SELECT n FROM counters") == [(11,)], "one of each")


def test_15_a_conflict_that_nobody_meets_before_the_end_is_no_attempt(nodes: Nodes) -> None:
    calls = list[int]()

    def handle(context: Any) -> None:
        calls.append(1)
        count_here(context)
        if len(calls) == 1:
            nodes.do("UPDATE counters SET n = n + 10 WHERE id = 1")
            wait_until(lambda: nodes.rows("SELECT n FROM counters", nodes.second) == [(10,)], "it on this node")

    assert one_job(nodes, handle) == [("Succeeded",)]
    wait_until(lambda: nodes.rows("SELECT n FROM counters") == [(11,)], "one of each")


@pytest.mark.prove
def test_15_processes_on_both_nodes_lose_and_double_nothing(empty_nodes: Nodes) -> None:
    """All four workloads, a worker and a writer on each node; the trigger with a window, for no horizon is sound."""
    fleets = [Fleet(node.url(empty_nodes.name)) for node in empty_nodes.cluster.nodes]
    own = [{"FLEET_FIRST": str(at), "FLEET_STEP": "2", "FLEET_LOOKBACK": "60"} for at in range(2)]
    fleets[0].holdfast().migrate()
    fleets[0].make_tables()
    wait_until(lambda: empty_nodes.rows("SELECT count(*) FROM effects", empty_nodes.second), "the tables on both nodes")
    workers = [fleet.process("work", more) for fleet, more in zip(fleets, own, strict=True)]
    for worker in workers:
        worker.wait_for_line("starting")
    feeders = [fleet.process("feed", more) for fleet, more in zip(fleets, own, strict=True)]
    wait_until(lambda: len(accepted(feeders)) >= PROVED, "enough to be accepted", 600)
    for feeder in feeders:
        feeder.kill()
    assert all("1213" in line for line in refused(feeders))  # transactions of the application's own
    assert accepted(feeders) <= fleets[0].orders()
    fleets[0].require_each_once("every effect once")
    assert {status for status, _ in fleets[0].attempts()} == {"Succeeded"}
    for worker in workers:
        worker.terminate()
    assert [worker.wait(60) for worker in workers] == [0, 0]
    for fleet in fleets:
        fleet.close()
