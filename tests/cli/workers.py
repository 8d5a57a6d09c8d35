"""`holdfast run` as a real process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.forked import PATIENCE_SECONDS
from tests.cli.shop import Shop
from tests.components.processes import start_leashed, wait_until

STARTED = "Running in process"


class Running:
    """A `holdfast run` process in the shop's directory, its output in a file."""

    def __init__(self, shop: Shop, *arguments: str, log: str = "output") -> None:
        self._log = shop.directory / log
        self.process = start_leashed(
            [sys.executable, "-u", "-W", "error", "-m", "holdfast", "run", *arguments],
            self._log,
            environment=shop.environment(),
            directory=shop.directory,
        )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running(shop: Shop, *arguments: str, log: str = "output") -> Iterator[Running]:
    worker = Running(shop, *arguments, log=log)
    try:
        yield worker
    except BaseException as error:
        error.add_note(f"output of the worker:\n{worker.output}")
        raise
    finally:
        worker.process.kill()
        worker.process.wait()


@contextmanager
def two_running(shop: Shop, *arguments: str, log: str) -> Iterator[tuple[Running, Running]]:
    """Two workers of the same release, both under way."""
    with running(shop, *arguments, log=f"{log}-1") as first, running(shop, *arguments, log=f"{log}-2") as second:
        for worker in (first, second):
            wait_until(lambda worker=worker: STARTED in worker.output, "both workers")  # type: ignore[misc]
        yield first, second


def end(*workers: Running) -> None:
    """Have workers drain and end; each must have finished all it had begun."""
    for worker in workers:
        worker.process.terminate()
    assert [worker.wait() for worker in workers] == [0] * len(workers)
