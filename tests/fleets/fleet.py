"""A fleet of processes of ``tests.fleets.app`` on one database, and the account of what became of what it accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import create_engine

from holdfast import EngineProvider, Holdfast
from tests.components.processes import PythonWorker, wait_until
from tests.fleets.app import TABLES, WORKS

SETTLING_SECONDS = 120.0


class Fleet:
    """Processes on one database. ``code`` is where the release lies that they run; this one when left out."""

    def __init__(
        self,
        url: str,
        *,
        state: Path | None = None,
        lease_seconds: float = 10,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self._environment = {"FLEET_URL": url, "FLEET_LEASE": str(lease_seconds), **(environment or {})}
        if state is not None:
            self._environment["FLEET_STATE"] = str(state)
        self.engine = create_engine(url, pool_pre_ping=True)

    def make_tables(self) -> None:
        """Create the application's own tables."""
        with self.engine.begin() as connection:
            for statement in TABLES[self.engine.dialect.name]:
                connection.execute(text(statement))

    def process(self, mode: str, more: Mapping[str, str] | None = None, *, code: Path | None = None) -> PythonWorker:
        """Start one process of the application."""
        release = {} if code is None else {"PYTHONPATH": str(code)}
        return PythonWorker(
            "-m", "tests.fleets.app", mode, environment={**self._environment, **release, **(more or {})}
        )

    @contextmanager
    def workers(self, count: int, *, code: Path | None = None) -> Iterator[list[PythonWorker]]:
        """Have workers that are at work, and end them in good order."""
        started = [self.process("work", code=code) for _ in range(count)]
        try:
            for worker in started:
                worker.wait_for_line("starting")
            yield started
            for worker in started:
                worker.terminate()
            assert [worker.wait(60) for worker in started] == [0] * count, "\n".join(each.output for each in started)
        finally:
            for worker in started:
                worker.kill()

    @contextmanager
    def feeders(self, count: int, *, code: Path | None = None, first: int = 1) -> Iterator[list[PythonWorker]]:
        """Have processes that accept one number after the other until the block ends."""
        numbers = [{"FLEET_FIRST": str(first + at), "FLEET_STEP": str(count)} for at in range(count)]
        started = [self.process("feed", each, code=code) for each in numbers]
        try:
            for feeder in started:
                feeder.wait_for_line("accepted")
            yield started
        finally:
            for feeder in started:
                feeder.kill()

    def orders(self) -> set[int]:
        """Return the numbers that the database has: each came with its job and its messages."""
        with self.engine.connect() as connection:
            return {int(n) for n in connection.execute(text("SELECT n FROM orders")).scalars()}

    def effects(self) -> Counter[tuple[str, int]]:
        """Return how often each number was written by each workload."""
        with self.engine.connect() as connection:
            found = connection.execute(text("SELECT work, n FROM effects")).all()
        return Counter((str(row.work), int(row.n)) for row in found)

    def require_each_once(self, what: str) -> None:
        """Wait until every number of the database has its effects, then see that none has one twice."""
        wanted = {(work, n) for n in self.orders() for work in WORKS}
        try:
            wait_until(lambda: wanted <= set(self.effects()), what, SETTLING_SECONDS)
        except TimeoutError:
            missing = sorted(wanted - set(self.effects()))
            raise AssertionError(f"lost {len(missing)} of {len(wanted)} effects, such as {missing[:5]}") from None
        found = self.effects()
        assert set(found) == wanted, f"effects of what is not there: {sorted(set(found) - wanted)[:5]}"
        assert {each: n for each, n in found.items() if n > 1} == {}

    def attempts(self) -> Counter[tuple[str, int]]:
        """Return how many entries the history has, by status and attempt."""
        with self.engine.connect() as connection:
            found = connection.execute(text("SELECT status, attempt FROM holdfast_history")).all()
        return Counter((str(row.status), int(row.attempt or 0)) for row in found)

    def holdfast(self) -> Holdfast:
        """Return the application without its handlers, of this release."""
        return Holdfast(self.url, app_name="fleet", engine_provider=EngineProvider())

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()


def accepted(feeders: Iterable[PythonWorker]) -> set[int]:
    """Return the numbers that feeders were told to be kept."""
    lines = [line for feeder in feeders for line in feeder.lines]
    return {int(line.removeprefix("accepted ")) for line in lines if line.startswith("accepted ")}


def refused(feeders: Iterable[PythonWorker]) -> list[str]:
    """Return what feeders were told of numbers that were not kept, or may not have been."""
    return [line for feeder in feeders for line in feeder.lines if line.startswith("refused ")]
