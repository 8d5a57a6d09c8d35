"""Suspects for remote workers [SUSPECT-1].

A worker that says so tests suspects itself: it is sent one when the last is over. For any other the server does what it
can from outside: it sends nothing else, waits until the worker holds nothing, records the begin as it sends the job,
and watches the row until the attempt has ended or has run for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.clock import Clock
from ..announcement import Operations
from ..claiming import Claiming
from ..model import Claim, ClaimedJob, PutBack, Suspect, WorkerId
from ..stores.base import SqlJobStore
from ..suspects import Suspects


class _Sent:
    """A suspect that was, or is to be, sent."""

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.claim = job.claim

    def lose(self, *, is_certain: bool) -> None:
        """Do nothing: the worker never heard of it."""


class _HeldRemotely:
    """What a remote worker holds, by the rows of the queue."""

    def __init__(self, store: SqlJobStore, owner: WorkerId) -> None:
        self._store = store
        self._owner = owner

    def __len__(self) -> int:
        return self._store.held_by(self._owner)

    def get(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return those of the claims that are held."""
        return [claim for claim in claims if self._is_held(claim)]

    def remove(self, claims: Sequence[Claim]) -> None:
        """Do nothing: the row tells."""

    def _is_held(self, claim: Claim) -> bool:
        found = self._store.get(claim.id)
        return found is not None and (found.columns["locked_by"], found.columns["attempt"]) == (
            self._owner,
            claim.attempt,
        )


class StreamSuspects:
    """The tests of one stream. Everything here blocks on the database and runs on threads, one call at a time."""

    def __init__(
        self,
        store: SqlJobStore,
        claiming: Claiming,
        owner: WorkerId,
        operations: Operations,
        clock: Clock,
        *,
        worker_tests: bool,
    ) -> None:
        self._claiming = claiming
        self._owner = owner
        self._operations = operations
        self._worker_tests = worker_tests
        self._testing = claiming.back_off(f"Testing suspects with {owner}")
        self._is_asked = worker_tests
        self._are_waiting = False
        self._to_send: list[ClaimedJob] = []
        self._tests: Suspects[_Sent] = Suspects(
            store,
            owner,
            _HeldRemotely(store, owner),
            clock,
            claim=self._claim,
            hold=_Sent,
            make_way=lambda: None,
            start=lambda sent: self._to_send.append(sent.job),
            put_back=lambda sent: self._put_back(store, sent),
        )

    def heard(self) -> None:
        """Take in that suspects wait somewhere."""
        self._are_waiting = True
        self._tests.heard(are_waiting=True)

    def ask(self) -> None:
        """Take in that the worker is ready to test another."""
        self._is_asked = True

    @property
    def is_due(self) -> bool:
        """Return whether there may be something to do."""
        return self._tests.is_testing or (self._are_waiting and (self._is_asked or not self._worker_tests))

    @property
    def is_testing(self) -> bool:
        """Return whether nothing else may be sent."""
        return self._tests.is_testing

    def next(self) -> list[Suspect]:
        """Return the suspect to send now, if there is one. Errors end here: other jobs are to be sent all the same."""
        if self._worker_tests:
            self._are_waiting = False
            nothing: tuple[Suspect | None, bool] = None, True
            found, _ = self._testing.attempt(self._claim, nothing)
            self._is_asked = found is None
            return [] if found is None else [found]
        self._testing.attempt(self._tests.step, 0)
        self._are_waiting = self._tests.is_testing
        sent, self._to_send = self._to_send, []
        return [Suspect(job, 0) for job in sent]

    def _claim(self) -> tuple[Suspect | None, bool]:
        return self._claiming.claim_suspect(self._owner, self._can_run)

    def _put_back(self, store: SqlJobStore, sent: _Sent) -> None:
        store.put_back(self._owner, [PutBack(sent.claim)])

    def _can_run(self, topic: str, operation: str) -> bool:
        if topic not in self._operations:
            return False
        names = self._operations[topic]
        return names is None or operation in names
