"""Eight workers under SIGKILL, SIGSTOP, cut connections and server restarts: nothing is lost.

Effects written through ``context.transaction`` are also never doubled. The short size runs with every test; the full
one (at least 200 faults) with ``make prove``, which prints its figures for ``docs/guarantees.md``.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.components.postgres import PostgresServer
from tests.components.processes import PythonWorker, wait_until
from tests.components.proxy import FaultProxy
from tests.faults.orders import OrderBook

WORKERS = 8
TRIGGERS = ("own-0", "own-1", "tx-0", "tx-1")
LEASE_SECONDS = 2.0


class Fleet:
    """Eight workers, half of them behind a proxy that can cut them off; the dead are replaced."""

    def __init__(self, url: str, proxy: FaultProxy, book: OrderBook, environment: dict[str, str]) -> None:
        self._urls = [url if number % 2 else proxy.redirect(url) for number in range(WORKERS)]
        self._book = book
        self._environment = environment
        self.workers = [self._start(number) for number in range(WORKERS)]
        self._frozen: list[tuple[float, PythonWorker]] = []

    def _start(self, number: int) -> PythonWorker:
        return PythonWorker(
            "-m",
            "tests.faults.worker",
            environment={
                "WORKER_URL": self._urls[number],
                "WORKER_TRIGGERS": ",".join(TRIGGERS),
                "LEASE_SECONDS": str(LEASE_SECONDS),
                "WORK_SECONDS": "0.05",
                "BATCH_SIZE": "5",
                **self._environment,
            },
        )

    def replace_the_dead(self) -> None:
        for number, worker in enumerate(self.workers):
            if not worker.running:
                self.workers[number] = self._start(number)

    def victim(self, chance: random.Random) -> PythonWorker:
        """Mostly a holder of some lease: hitting a worker that only waits shows little."""
        try:
            pid = self._book.holder_pid(chance.choice(TRIGGERS)) if chance.random() < 0.8 else None
        except Exception:  # the server may be down at this very moment
            pid = None
        named = [worker for worker in self.workers if worker.pid == pid]
        return named[0] if named else chance.choice(self.workers)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()


def inject(
    fleet: Fleet,
    proxy: FaultProxy,
    server: PostgresServer,
    database: str,
    seed: int,
    faults: int,
) -> Counter[str]:
    """Inject faults one after the other, seeded; return how many of each kind."""
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    pause = threading.Event()
    frozen: list[PythonWorker] = []

    def freeze() -> None:
        worker = fleet.victim(chance)
        if worker.running and worker not in frozen:
            worker.suspend()
            frozen.append(worker)

    def thaw() -> None:
        if frozen:
            frozen.pop(0).resume()

    kinds: dict[str, tuple[int, Callable[[], object]]] = {
        "SIGKILL": (45, lambda: fleet.victim(chance).kill()),
        "SIGSTOP": (25, freeze),
        "cut connections": (18, proxy.cut),
        "ended sessions": (8, lambda: server.terminate_sessions(database)),
        "server restart": (4, lambda: server.restart(immediate=True)),
    }
    while done.total() < faults:
        name = chance.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        kinds[name][1]()
        done[name] += 1
        pause.wait(chance.uniform(0.05, 0.45))
        if len(frozen) > 2 or chance.random() < 0.4:
            thaw()
        fleet.replace_the_dead()
    for worker in frozen:
        worker.resume()
    return done


@contextmanager
def placing(book: OrderBook) -> Iterator[None]:
    stop = threading.Event()
    writer = threading.Thread(target=book.keep_placing, args=(stop,))
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
        book.settle()


def fault_run(
    server: PostgresServer, faults: int, seed: int, environment: dict[str, str] | None = None
) -> tuple[OrderBook, Counter[str]]:
    """Run the fleet under faults, let it come to rest, and return the book and the faults."""
    database = server.create_database()
    url = server.url(database)
    book = OrderBook(url)
    with FaultProxy(server.port) as proxy:
        fleet = Fleet(url, proxy, book, environment or {})
        try:
            for worker in fleet.workers:
                worker.wait_for_line("starting")
            with placing(book):
                done = inject(fleet, proxy, server, database, seed, faults)

            def at_rest() -> bool:
                fleet.replace_the_dead()
                return all(book.account(name).lost == 0 for name in TRIGGERS)

            wait_until(at_rest, "every accepted order to be delivered", timeout_seconds=90)
        finally:
            fleet.stop()
    return book, done


def report(book: OrderBook, done: Counter[str]) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in done.most_common())
    lines = [f"{done.total()} faults ({kinds}), {WORKERS} workers"]
    return "\n".join([*lines, *(f"  {name}: {book.account(name)}" for name in TRIGGERS)])


def check(book: OrderBook) -> None:
    for name in TRIGGERS:
        account = book.account(name)
        assert account.lost == 0, f"{name}: {account}"
        if name.startswith("tx-"):
            assert account.duplicated == 0, f"{name}: {account}"


@pytest.mark.component("postgres18")
def test_nothing_is_lost_and_no_transactional_effect_doubled(postgres_server: PostgresServer) -> None:
    book, done = fault_run(postgres_server, faults=30, seed=20261115)
    print(report(book, done))
    check(book)
    assert len(book.accepted) > 50
    book.close()


@pytest.mark.prove
@pytest.mark.component("postgres18")
def test_the_full_fault_run(postgres_server: PostgresServer) -> None:
    seed = int(os.environ.get("FAULT_SEED", "20261115"))
    book, done = fault_run(postgres_server, faults=250, seed=seed)
    print(report(book, done))
    check(book)
    assert done.total() >= 200
    book.close()
