"""The sequencer, on MariaDB and MySQL: gives committed messages their positions.

There a message is committed without one, because ids are drawn before commits and become visible in any order. One
leased sequencer looks for committed messages by consistent read, which waits for nobody, and numbers them in one
transaction. A transaction's messages get positions in a row; transactions are numbered by their last append, so that
who waited for a lock comes after whom it waited for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import Connection, Engine

from ..core.clock import Clock
from ..core.errors import LostLeaseError
from ..lease.held_lease import HeldLease
from ..lease.store import StateStore
from ..records.database import changing
from ..runtime.idle_time import limit_idle_time
from ..runtime.keeper import keeping
from ..runtime.leased_part import logged_step
from .statements import named
from .step import Step

LEASE_NAME = "outbox-sequencer"
_MOST_AT_ONCE = 5000
LONGEST_LEASE_SECONDS = 10.0
_RELEASE_SECONDS = 2.0


class Sequencer:
    """Numbers messages under a lease; safe without it too, because it locks the row with the last position."""

    title = "The outbox's sequencer"

    def __init__(
        self, engine: Engine, leases: StateStore, clock: Clock, lease_seconds: float = LONGEST_LEASE_SECONDS
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._clock = clock
        self._lease_seconds = lease_seconds

    @contextmanager
    def leased(self) -> Iterator[HeldLease]:
        """Hold the lease while something runs inside.

        Raises:
            LeaseConflictError: another process numbers.
        """
        with logged_step(self.title):
            lease = self._leases.acquire(LEASE_NAME, ttl_seconds=self._lease_seconds)
        try:
            with keeping(lease, self._clock):
                yield lease
        finally:
            lease.release(wait_seconds=_RELEASE_SECONDS)

    def process_batch(self, lease: HeldLease) -> Step:
        """Number what is there."""
        with logged_step(self.title):
            numbered = self.number(lease.fencing_token)
            if numbered is None:
                lease.mark_lost()
                raise LostLeaseError(
                    "Another sequencer has taken over; if there is none, the lease's document was deleted: run "
                    "'holdfast processor resume' to start afresh."
                )
        return Step(numbered, caught_up=numbered == 0)

    def number(self, token: int) -> int | None:
        """Give committed messages their positions; return how many, None when the token no longer holds [OUTBOX-6]."""
        with changing(self._engine) as connection:
            limit_idle_time(connection, self._lease_seconds)
            row = _run(connection, "lock_sequence", token=token).one_or_none()
            if row is None:
                return None
            found = self._unnumbered(connection)
            if not found:
                return 0
            last: int = row[0]
            given = [(message_id, last + place) for place, message_id in enumerate(in_order(found), 1)]
            for sql in named.script("mysql", "give_positions"):
                values = {"batch": json.dumps(given), "last_position": last + len(given), "token": token}
                connection.exec_driver_sql(sql, values)
        return len(given)

    def _unnumbered(self, connection: Connection) -> list[tuple[int, str]]:
        """Return messages without a position: all of each transaction that is among them."""
        found = [(row[0], row[1]) for row in _run(connection, "unsequenced", most=_MOST_AT_ONCE)]
        if len(found) < _MOST_AT_ONCE:
            return found
        everything = self._of_same_groups(connection, found)
        looked_up_to = max(found[-1][0], min(_last_appends(everything).values()))
        if looked_up_to > found[-1][0]:  # no transaction ends within: look as far as the first one does
            found = [(row[0], row[1]) for row in _run(connection, "unsequenced_up_to", last_id=looked_up_to)]
            everything = self._of_same_groups(connection, found)
        return whole_groups(everything, looked_up_to)

    def _of_same_groups(self, connection: Connection, found: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        groups = json.dumps(sorted({group for _, group in found}))
        return [(row[0], row[1]) for row in _run(connection, "unsequenced_of_groups", batch=groups)]


def whole_groups(found: Sequence[tuple[int, str]], looked_up_to: int) -> list[tuple[int, str]]:
    """Return the messages of transactions whose last append was looked at.

    One that goes on beyond may have waited for a transaction that is numbered only next time.
    """
    last_of = _last_appends(found)
    return [(message_id, group) for message_id, group in found if last_of[group] <= looked_up_to]


def _last_appends(found: Sequence[tuple[int, str]]) -> dict[str, int]:
    last_of: dict[str, int] = {}
    for message_id, group in found:
        last_of[group] = max(message_id, last_of.get(group, 0))
    return last_of


def in_order(found: Sequence[tuple[int, str]]) -> list[int]:
    """Return the ids of messages in the order they are numbered: by their transaction's last append, then by id."""
    last_of = _last_appends(found)
    return [message_id for message_id, group in sorted(found, key=lambda item: (last_of[item[1]], item[0]))]


def _run(connection: Connection, name: str, **values: object) -> Any:
    return connection.exec_driver_sql(named.statement("mysql", name), values)
