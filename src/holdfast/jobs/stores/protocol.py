"""What a worker needs of its queue: the store in the database keeps it, and so does the client of a remote one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sqlalchemy.engine import Connection, Engine

from ...core.clock import Clock
from ..model import (
    Claim,
    ClaimedJob,
    Due,
    Failure,
    JobStatus,
    PutBack,
    Stopped,
    Success,
    Suspect,
    WaitingSuspect,
    Wanted,
    WorkerId,
)


class WakeUps(Protocol):
    """Tells a worker that there is something to do."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """End."""
        ...

    @property
    def is_alive(self) -> bool:
        """Return whether news can still come."""
        ...


class WorkerStore(Protocol):
    """The queue as a worker sees it. ``SqlJobStore`` documents what each method promises."""

    @property
    def engine(self) -> Engine | None:
        """Return the database; None for a worker that has no access to one."""
        ...

    @property
    def notifies(self) -> bool:
        """Return whether news arrives without polling."""
        ...

    def wake_ups(
        self, wanted: Wanted, clock: Clock, *, on_jobs: Callable[[], None], on_cancel: Callable[[], None]
    ) -> WakeUps | None:
        """Return what brings the news of these topics, None where the worker must poll."""
        ...

    def announce(self, worker: WorkerId, operations: Mapping[str, Sequence[str] | None]) -> None:
        """Write down that a worker is there and what it can run."""
        ...

    def withdraw(self, worker: WorkerId) -> None:
        """Forget a worker that stops."""
        ...

    def claim(
        self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int] | None = None
    ) -> list[ClaimedJob]:
        """Claim jobs of the operations, of each topic so many at most."""
        ...

    def claim_limited(self, worker: WorkerId, topic: str, operations: Sequence[str], capacity: int) -> list[ClaimedJob]:
        """Claim from a limited topic."""
        ...

    def rate_opens_in(self, topic: str) -> float | None:
        """Return for how long a rate keeps jobs of a limited topic waiting, None when none does."""
        ...

    def limited_topics(self) -> list[str]:
        """Return the topics to pass to ``claim_limited``."""
        ...

    def promote(self, limit: int = 1000) -> int:
        """Let scheduled jobs whose time has come be claimed."""
        ...

    def next_due(self) -> Due:
        """Return how long it is until the next scheduled job is due, and whether suspects wait."""
        ...

    def suspects(self, can_run: Callable[[str, str], bool]) -> Sequence[WaitingSuspect]:
        """Return the suspects to test here, who has waited longest first."""
        ...

    def claim_suspect(self, worker: WorkerId, waiting: WaitingSuspect) -> Suspect | None:
        """Claim a suspect if there is room for it."""
        ...

    def begin(self, worker: WorkerId, claim: Claim) -> bool:
        """Record that an attempt begins."""
        ...

    def clear(self, worker: WorkerId, claim: Claim) -> bool:
        """Record that an attempt is not to be charged any more if its worker is lost."""
        ...

    def heartbeat(self, worker: WorkerId, claims: Sequence[Claim]) -> dict[Claim, str | None]:
        """Extend leases."""
        ...

    def progress(self, worker: WorkerId, claim: Claim, progress: str | None) -> bool:
        """Extend one lease and say how far the work is."""
        ...

    def complete(self, worker: WorkerId, reports: Sequence[Success]) -> set[Claim]:
        """End jobs that succeeded."""
        ...

    def hold_on(self, connection: Connection, worker: WorkerId, claim: Claim) -> str | None:
        """Look inside the handler's transaction whether an attempt is still ours; raise when it is not."""
        ...

    def complete_on(self, connection: Connection, worker: WorkerId, report: Success) -> bool:
        """End one job inside the handler's transaction."""
        ...

    def fail(self, worker: WorkerId, reports: Sequence[Failure]) -> dict[Claim, JobStatus]:
        """End attempts that failed."""
        ...

    def put_back(self, worker: WorkerId, reports: Sequence[PutBack]) -> dict[Claim, JobStatus | None]:
        """Give jobs back; those with a status failed instead."""
        ...

    def end_cancelled(self, worker: WorkerId, reports: Sequence[Stopped]) -> set[Claim]:
        """End jobs that were asked to stop and did."""
        ...

    def has_landed(self, job: ClaimedJob) -> bool:
        """Return whether the success of this attempt was recorded."""
        ...

    def give_back_waiting(self) -> None:
        """Give back what was sent to the worker and not taken by it yet."""
        ...

    def reap(self, limit: int = 1000) -> dict[Claim, JobStatus]:
        """End attempts whose lease has passed."""
        ...
