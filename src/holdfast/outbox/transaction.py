"""``context.transaction`` of a processor: opened before the handler, its first statement stores the checkpoint.

A handler whose checkpoint cannot be stored is not called at all. The transaction of a process that freezes is ended by
the server within the lease's time to live, so that its successor finds the row free.
"""

from __future__ import annotations

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from ..core.clock import Clock
from ..core.errors import CommitError
from ..core.handler_transaction import HandlerTransaction
from ..state.lease import HeldLease
from .idle import count_idle_time_again, limit_idle_time
from .whole import has_ended, refuse_to_end, watch_for_undoing

_IDLE_KILLED = "25P03"  # PostgreSQL: idle_in_transaction_session_timeout
_ABOUT = 0.9  # MariaDB counts whole seconds


class ProcessorTransaction(HandlerTransaction):
    """The transaction of one delivery."""

    def __init__(self, engine: Engine, lease: HeldLease, clock: Clock) -> None:
        super().__init__(engine, lease.ttl_seconds, lease.protect)
        self._ends_it = False
        self._idle_seconds = lease.ttl_seconds
        self._clock = clock
        self._said_at = clock.monotonic()
        self._silent_before = 0.0

    @property
    def is_cut_off(self) -> bool:
        """Return whether the connection broke, by itself or by the server."""
        return self._connection is not None and self._connection.invalidated

    def was_idle_too_long(self, error: BaseException) -> bool:
        """Return whether the database ended the transaction because its handler said nothing on it for too long.

        PostgreSQL says so; elsewhere the connection is just gone, after as long a silence.
        """
        for cause in (error, error.__cause__):
            if getattr(getattr(cause, "orig", None), "sqlstate", None) == _IDLE_KILLED:
                return True
        is_gone = self.is_cut_off or getattr(error.__cause__, "connection_invalidated", False)
        return bool(is_gone) and self._silent_before >= _ABOUT * self._idle_seconds

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether the database did answer a commit, and refused it: by a deferred constraint, say."""
        cause = error.__cause__
        return isinstance(cause, IntegrityError) and not cause.connection_invalidated

    def commit(self) -> None:
        """Commit the effects and the checkpoint.

        Raises:
            CommitError: the transaction was ended behind our back: what was written before that is gone, the
                checkpoint too, so nothing is kept.
        """
        if not self.is_active:
            raise _ended_by_the_handler()
        if self._connection is not None and has_ended(self._connection):
            self._is_broken = True
            raise _undone()
        self._ends_it = True
        self._silent_before = self._clock.monotonic() - self._said_at
        super().commit()

    def _connect(self) -> Connection:
        connection = super()._connect()
        watch_for_undoing(connection)
        event.listen(connection, "commit", self._refuse_commit)
        event.listen(connection, "before_cursor_execute", self._refuse_to_end)
        event.listen(connection, "before_cursor_execute", self._note_silence)
        event.listen(connection, "after_cursor_execute", self._note_said)
        if connection.dialect.driver == "psycopg":
            event.listen(connection, "after_cursor_execute", count_idle_time_again)
        return connection

    def _refuse_to_end(self, connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if self._transaction is None:  # it is Holdfast who begins it
            return
        if connection.dialect.name != "postgresql" and has_ended(connection):  # there the server refuses by itself
            raise _undone()
        refuse_to_end(connection, statement)

    def _note_silence(self, *_: object) -> None:
        self._silent_before = self._clock.monotonic() - self._said_at

    def _note_said(self, *_: object) -> None:
        self._said_at = self._clock.monotonic()

    def _refuse_commit(self, _connection: Connection) -> None:
        """Refuse to commit half of the effects with the whole checkpoint."""
        if not self._ends_it:
            self._is_broken = True  # SQLAlchemy takes it for ended now; throwing the connection away undoes it for sure
            raise _ended_by_the_handler()

    def _bound_idle_time(self, connection: Connection) -> None:
        """On PostgreSQL this comes with the statement that stores the checkpoint, for no round trip of its own."""
        limit_idle_time(connection, self._idle_seconds)


def _undone() -> CommitError:
    return CommitError(
        "A statement of the handler failed and was caught, and the database has undone the transaction with it, so "
        "nothing was kept. Put statements that may fail into context.transaction.begin_nested(), or let the error out."
    )


def _ended_by_the_handler() -> CommitError:
    return CommitError(
        "The handler ended context.transaction itself, so its writes and the checkpoint could not commit together. "
        "Leave commit and rollback to Holdfast: return to commit, raise to roll back."
    )
