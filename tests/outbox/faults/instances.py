"""Instances of the application under faults: mostly whoever holds a lease is hit; the dead are replaced."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from holdfast import Holdfast
from holdfast.core.errors import DbError
from holdfast.outbox.store import PartitionId
from tests.components.processes import PythonWorker, wait_until
from tests.jobs.faults.fleet import Fleet, Post
from tests.outbox.faults.app import TABLES
from tests.outbox.shops import Shop

_MISMATCH = "mismatch: "
_SURPRISES = ("failed unexpectedly", "was stopped:", "stopped before handlers finished")
_SURPRISE_CHARACTERS = 4_000
_HIT_THE_HOLDER = 0.8


def prepared(url: str) -> Shop:
    """Return the application on an empty database, with the tables its handlers and writers use."""
    shop = Shop(url)
    shop.app.migrate()
    for statement in TABLES[shop.app.database.dialect.name]:
        shop.execute(statement)
    return shop


def instance(url: str, processors: Sequence[str], environment: Mapping[str, str] | None = None) -> PythonWorker:
    """Start one instance."""
    given = {"WORKER_URL": url, "PROCESSORS": ",".join(processors), **(environment or {})}
    return PythonWorker("-m", "tests.outbox.faults.app", environment=given)


def undelivered(shop: Shop, processor_id: str) -> int:
    """Return how many messages of the outbox a processor has no effect of."""
    sql = (
        "SELECT count(*) AS missing FROM holdfast_outbox AS message WHERE NOT EXISTS "
        "(SELECT 1 FROM effects WHERE effects.message_id = message.message_id AND processor_id = :name)"
    )
    [row] = shop.execute(sql, name=processor_id)
    missing: int = row["missing"]
    return missing


def holder_pid(hf: Holdfast, processor_id: str) -> int | None:
    """Return the process that holds a processor's lease; None when nobody does, or the server cannot tell."""
    try:
        view = hf.processors.leases.read(PartitionId(processor_id, 1, 0).lease_name)
    except DbError:
        return None
    if view is None or view.lease is None or view.lease.owner_id is None:
        return None
    return int(view.lease.owner_id.split("/")[1])


class Instances(Fleet):
    """The instances of a run, all with the same processors."""

    def __init__(self, posts: Sequence[Post], processors: Sequence[str], shop: Shop) -> None:
        self.mismatches: Counter[str] = Counter()
        self._processors = processors
        self._shop = shop
        super().__init__(posts)

    def _start(self, post: Post) -> PythonWorker:
        return instance(post.url, self._processors, post.environment)

    def victim(self, chance: random.Random, fits: Callable[[Post], bool] = lambda post: True) -> PythonWorker | None:
        """Return mostly the holder of some lease: hitting an instance that only waits shows little."""
        if chance.random() < _HIT_THE_HOLDER:
            pid = holder_pid(self._shop.app, chance.choice(self._processors))
            for worker in self.workers:
                if worker.pid == pid and worker.running and worker not in self.frozen:
                    return worker
        return super().victim(chance, fits)

    def _bury(self, worker: PythonWorker, post: Post) -> None:
        """Count what an instance said, and remove what it left."""
        output, status = worker.output, worker.wait()
        lines = output.splitlines()
        self.mismatches.update(line.removeprefix(_MISMATCH) for line in lines if line.startswith(_MISMATCH))
        places = [output.find(surprise) for surprise in _SURPRISES]
        self._note(output[place : place + _SURPRISE_CHARACTERS] for place in places if place >= 0)
        if status not in (0, -signal.SIGKILL) and "starting" in lines:  # before that, no database is a reason to end
            self._note([f"an instance ended by itself ({status}):\n{output[-_SURPRISE_CHARACTERS:]}"])
        shutil.rmtree(worker.log.parent, ignore_errors=True)

    def stop(self) -> None:
        """Let every instance finish what it is at, so that nothing is written after the books are closed."""
        for worker in self.workers:
            worker.terminate()
        try:
            wait_until(lambda: not any(worker.running for worker in self.workers), "every instance to end", 60)
        finally:
            for worker, post in zip(self.workers, self.posts, strict=True):
                worker.kill()
                self._bury(worker, post)
