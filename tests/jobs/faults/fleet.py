"""Worker processes under faults: the dead are replaced, and what they wrote is kept long enough to be counted."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.components.preload import FailingDisk, WallClock, forget_faketime
from tests.components.processes import PythonWorker

_REFUSED = "its report was refused"
_SURPRISE = "failed unexpectedly"
_MOST_SURPRISES = 20
_MOST_CHARACTERS = 6_000


@dataclass(frozen=True, slots=True)
class Post:
    """How one place of the fleet is manned: where its database is, and which faults can be put into it."""

    url: str
    preload: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: WallClock | None = None
    disk: FailingDisk | None = None


class Fleet:
    """One worker process per post."""

    def __init__(self, posts: Sequence[Post]) -> None:
        self.posts = posts
        self.stale_rejected = 0
        self.surprises: list[str] = []
        self.frozen: set[PythonWorker] = set()
        self.workers = [self._start(post) for post in posts]
        for worker in self.workers:
            worker.wait_for_line("starting")

    def _start(self, post: Post) -> PythonWorker:
        return PythonWorker(
            "-m",
            "tests.jobs.faults.app",
            environment={"WORKER_URL": post.url, **post.environment},
            preload=post.preload,
        )

    def replace_the_dead(self) -> None:
        """Start a new worker wherever one has died."""
        for number, worker in enumerate(self.workers):
            if not worker.running:
                self._bury(worker, self.posts[number])
                self.workers[number] = self._start(self.posts[number])

    def _bury(self, worker: PythonWorker, post: Post) -> None:
        """Count what a worker said, and remove what it left."""
        output = worker.output
        lines = output.splitlines()
        self.stale_rejected += sum(_REFUSED in line for line in lines)
        self._note(output[place : place + _MOST_CHARACTERS] for place in [output.find(_SURPRISE)] if place >= 0)
        status = worker.wait()
        if status != -signal.SIGKILL and "starting" in lines:  # before that, no database is a reason to end
            self._note([f"a worker ended by itself ({status}):\n{output[-_MOST_CHARACTERS:]}"])
        forget_faketime(worker.pid)
        if post.disk is not None:
            post.disk.forget(worker.pid)
        shutil.rmtree(worker.log.parent, ignore_errors=True)

    def _note(self, surprises: Iterable[str]) -> None:
        self.surprises += list(surprises)[: max(0, _MOST_SURPRISES - len(self.surprises))]

    def victim(self, chance: random.Random, fits: Callable[[Post], bool] = lambda post: True) -> PythonWorker | None:
        """Return a worker that runs and is not stopped, on a post that fits; None when there is none."""
        fitting = [
            worker
            for worker, post in zip(self.workers, self.posts, strict=True)
            if worker.running and worker not in self.frozen and fits(post)
        ]
        return chance.choice(fitting) if fitting else None

    def post_of(self, worker: PythonWorker) -> Post:
        return self.posts[self.workers.index(worker)]

    def freeze(self, worker: PythonWorker) -> None:
        worker.suspend()
        self.frozen.add(worker)

    def thaw(self, worker: PythonWorker) -> None:
        self.frozen.discard(worker)
        worker.resume()

    def stop(self) -> None:
        """End every worker."""
        for worker, post in zip(self.workers, self.posts, strict=True):
            worker.kill()
            self._bury(worker, post)
