"""What is wrong stops alone; what dies takes the process with it; all that runs has one time to finish."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from holdfast import Holdfast, RowChange
from holdfast.core.errors import (
    ConfigurationError,
    DbError,
    FingerprintMismatchError,
    SourceConfigurationError,
    WorkerDiedError,
)
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.runtime import idle_time
from holdfast.runtime.idle_time import Pulse
from holdfast.runtime.keeper import Keeper
from holdfast.runtime.listener import Listener
from holdfast.runtime.supervisor import Supervisor
from tests.components.processes import wait_until
from tests.trigger.shop import Shop


@contextmanager
def running(hf: Holdfast) -> Iterator[list[bool]]:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(hf.run(handle_signals=False)))
    thread.start()
    try:
        yield results
    finally:
        hf.stop()
        thread.join(60)
    assert not thread.is_alive()


def quiet(changes: list[RowChange]) -> None:
    """Do nothing."""


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    found = Shop(request.getfixturevalue(request.param))
    yield found
    found.close()


def declare_job(hf: Holdfast, name: str = "mail") -> Callable[[], bool]:
    """Declare a job and enqueue it; return what tells whether it is done."""

    @hf.job(topic="mail", name=name)
    def job() -> None:
        pass

    job_id = job.enqueue().id
    return lambda: hf.jobs.result(job_id) is not None


def missing_table(hf: Holdfast) -> None:
    hf.trigger("invoices", cursor="updated_at", name="broken")(quiet)


def changed_source(hf: Holdfast) -> None:
    """Let a checkpoint be kept for another source than the one that is declared."""
    other = Holdfast(hf._config.connection_url)
    other.trigger("orders", cursor="id", horizon="none", name="broken")(quiet)
    other.runner("broken").tick()
    other._provider.dispose_all()
    hf.trigger("orders", cursor="updated_at", name="broken")(quiet)


WRONG = [(missing_table, SourceConfigurationError), (changed_source, FingerprintMismatchError)]


@pytest.mark.parametrize(("go_wrong", "error"), WRONG)
def test_one_wrong_trigger_stops_alone_and_is_logged(
    shop: Shop, go_wrong: Callable[[Holdfast], None], error: type[DbError], caplog: pytest.LogCaptureFixture
) -> None:
    shop.place([1])
    go_wrong(shop.hf)
    is_done = declare_job(shop.hf)
    seen: list[int] = []
    shop.hf.trigger("orders", cursor="updated_at")(lambda changes: seen.append(len(changes)))
    with caplog.at_level(logging.ERROR, logger="holdfast.worker"), running(shop.hf) as results:
        wait_until(lambda: is_done() and seen, "the job and the other trigger")
    assert results == [True]
    assert [type(fault) for fault in shop.hf.faults().values()] == [error]
    told = [record.getMessage() for record in caplog.records if record.name == "holdfast.worker"]
    assert len(told) == 1
    assert told[0].startswith("Trigger 'broken' does not run until that is mended: ")
    with pytest.raises(error):
        shop.hf.run(handle_signals=False, strict=True)


def test_strictly_everything_that_is_wrong_is_named(shop: Shop) -> None:
    declare_job(shop.hf)
    missing_table(shop.hf)
    shop.hf.trigger("receipts", cursor="updated_at")(quiet)
    shop.hf.processor("late", start_from="stored")(quiet)
    for refuse in (shop.hf.validate, lambda: shop.hf.run(handle_signals=False, strict=True)):
        with pytest.raises(ConfigurationError, match=r"^3 of what is declared cannot run\.") as refused:
            refuse()
        for title in ("Trigger 'broken'", "Trigger 'receipts'", "Processor 'late' version 1"):
            assert f" {title} does not run: " in str(refused.value)


@pytest.mark.parametrize(("go_wrong", "error"), WRONG)
def test_where_nothing_else_is_declared_it_refuses_to_start(
    shop: Shop, go_wrong: Callable[[Holdfast], None], error: type[DbError]
) -> None:
    shop.place([1])
    go_wrong(shop.hf)
    with pytest.raises(error):
        shop.hf.run(handle_signals=False)


def test_a_mended_trigger_runs_without_a_restart(shop: Shop) -> None:
    seen: list[int] = []
    shop.hf.trigger("invoices", cursor="id", key="id", horizon="none")(lambda changes: seen.append(len(changes)))
    is_done = declare_job(shop.hf)
    with running(shop.hf):
        wait_until(is_done, "the job")
        with shop.engine.begin() as connection:
            connection.execute(text("CREATE TABLE invoices (id INTEGER PRIMARY KEY)"))
            connection.execute(text("INSERT INTO invoices VALUES (1)"))
        wait_until(lambda: seen, "the invoice", 60)
    assert seen == [1]


def test_after_a_promotion_the_same_release_runs_on_without_the_retired_version(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    delivered: dict[int, list[str]] = {1: [], 2: []}

    def declare(version: int) -> None:
        @shop.hf.processor("totals", version=version)
        def note(messages: list[Message]) -> None:
            delivered[version].extend(message.message_id for message in messages)

    declare(1)
    declare(2)
    shop.hf.processors.register()
    shop.hf.processors.operator.promote("totals", actor="anne", version=2, force=True)
    with shop.engine.begin() as connection:
        shop.hf.outbox.append(connection, "OrderPlaced", {}, message_id="m1")
    is_done = declare_job(shop.hf)
    with running(shop.hf) as results:
        wait_until(lambda: is_done() and delivered[2], "the job and the active version")
    assert results == [True]
    assert delivered == {1: [], 2: ["m1"]}
    assert "version 1 was retired when version 2 was promoted" in caplog.text


def test_strictly_a_version_that_is_retired_while_it_runs_ends_the_process(shop: Shop) -> None:
    shop.hf.processor("totals")(quiet)
    newer = Holdfast(shop.hf._config.connection_url)
    newer.processor("totals", version=2)(quiet)

    def promote() -> None:
        newer.processors.register()
        newer.processors.operator.promote("totals", actor="anne", version=2, force=True)

    shop.hf.processors.register()
    with pytest.raises(WorkerDiedError, match="was retired when a newer version was promoted"):
        shop.hf.run(handle_signals=False, strict=True, on_started=promote)
    newer._provider.dispose_all()


class Piece:
    """A part that waits for its end, or meets one of its own."""

    def __init__(self, title: str, stop: threading.Event, error: Exception | None = None) -> None:
        self.title = title
        self.is_given_up = False
        self.finishes = threading.Event()
        self._stop = stop
        self._error = error

    def run(self) -> bool:
        if self._error is not None:
            raise self._error
        self._stop.wait(60)
        return self.finishes.wait(60)

    def stopping(self) -> None:
        pass

    def give_up(self) -> None:
        self.is_given_up = True


def test_a_part_that_dies_ends_the_process_once_the_rest_has_drained() -> None:
    stop = threading.Event()
    rest, dying = Piece("The rest", stop), Piece("The fetcher", stop, ValueError("no thread"))
    rest.finishes.set()
    with pytest.raises(WorkerDiedError, match=r"The fetcher died: ValueError at test_supervisor") as died:
        Supervisor([rest, dying], stop).run()
    assert died.value.has_drained
    assert not rest.is_given_up


def test_a_part_that_ends_by_itself_has_died() -> None:
    stop = threading.Event()

    class Ending(Piece):
        def run(self) -> bool:
            return True

    with pytest.raises(WorkerDiedError, match="ended although nobody stopped it"):
        Supervisor([Ending("The fetcher", stop)], stop).run()


def test_one_drain_time_for_all_and_what_outlives_it_is_given_up() -> None:
    stop = threading.Event()
    quick, slow, slower = (Piece(title, stop) for title in ("quick", "slow", "slower"))
    quick.finishes.set()
    stop.set()
    assert not Supervisor([quick, slow, slower], stop, drain_seconds=0.5).run()
    assert [part.is_given_up for part in (quick, slow, slower)] == [False, True, True]
    slow.finishes.set()
    slower.finishes.set()


def test_a_jobs_worker_that_loses_a_part_ends_the_process(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    monkeypatch.setattr("holdfast.jobs.worker.JobWorker._claim", _end)
    shop.hf.job(topic="mail", name="mail")(lambda: None)
    with pytest.raises(WorkerDiedError, match=r"The jobs' worker died: it has lost the fetcher\."):
        shop.hf.run(handle_signals=False)


def _end(*_: object) -> int:
    raise SystemExit("planted")


@pytest.mark.parametrize(
    ("title", "owner", "step"),
    [
        ("The keeper of leases", Keeper, "_see_that_someone_beats"),
        ("The keeper of leases", Keeper, "_next"),
        ("The pulse of open transactions", Pulse, "_due"),
        ("The listener", Listener, "_listening_for_all"),
    ],
)
def test_what_all_parts_share_is_watched(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, title: str, owner: type, step: str
) -> None:
    """Each dies while a handler runs in its transaction; the handler finishes all the same."""
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    shop = Shop(postgres_url)
    begun, stopping = threading.Event(), shop.hf._stop

    @shop.hf.processor("totals", lease_seconds=1.5)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        context.transaction.execute(text("INSERT INTO effects (order_id, token, batch) VALUES (1, 1, 'b')"))
        begun.set()
        assert stopping.wait(30)

    with shop.engine.begin() as connection:
        shop.hf.outbox.append(connection, "OrderPlaced", {})

    def die() -> None:
        assert begun.wait(30)
        monkeypatch.setattr(owner, step, _end)

    killer = threading.Thread(target=die)
    killer.start()
    try:
        with pytest.raises(WorkerDiedError, match=f"{title} died: its thread has ended") as died:
            shop.hf.run(handle_signals=False)
    finally:
        killer.join()
        idle_time.pulse._thread = None  # its death was planted: who comes next needs another
        shop.close()
    assert died.value.has_drained


@pytest.mark.component("postgres18")
def test_rights_that_are_missing_for_processors_stop_only_them(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Holdfast(postgres_url)
    owner.migrate()
    role = f"clerk_{owner.database.url.database}"
    with owner.database.begin() as connection:
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
            f"REVOKE ALL ON holdfast_processor_checkpoints, holdfast_outbox FROM {role}",
        ):
            connection.execute(text(statement))
    hf = Holdfast(postgres_url.replace("postgres@", f"{role}@"))
    hf.processor("totals")(lambda messages: None)
    is_done = declare_job(hf)
    try:
        with caplog.at_level(logging.ERROR, "holdfast"), running(hf) as results:
            wait_until(is_done, "the job")
            wait_until(lambda: "totals" in caplog.text, "the word about the processor")
        assert results == [True]
        assert "it lacks SELECT on holdfast_processor_checkpoints" in caplog.text
        assert "SELECT on holdfast_outbox" in caplog.text
    finally:
        hf._provider.dispose_all()
        with owner.database.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
        owner._provider.dispose_all()
