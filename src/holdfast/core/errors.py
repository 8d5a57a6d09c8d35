"""Every error Holdfast raises, in one tree.

::

    DbError                           base of everything below
    ├── ConfigurationError            the caller must change something; a retry cannot help
    │   └── MissingDependencyError    an extra is not installed
    ├── WorkerDiedError               a part of a worker process died; the rest was drained
    ├── DbConnectionError             the database did not answer; a retry can help
    ├── QueryError                    a read failed
    ├── WriteError                    a write failed
    ├── NotFoundError                 exactly one row was asked for and there was none
    ├── CursorSerializationError      a value cannot be a cursor, or a stored one cannot be read
    ├── StateStoreError               the state document could not be read or written
    │   ├── Conflict                  the document changed since it was read; nothing was written
    │   │   ├── RegistryLocked        the registry's lock is another job's (409); try again after it ends
    │   │   └── AlreadyRunning        another execution of a singleton is at work (409); try again after it ends
    │   ├── Unavailable               the store did not take the write; nothing was written; retry can help
    │   │   └── UndoneError           the database undid a handler's transaction, through no fault of the handler
    │   ├── Ambiguous                 the answer to a write was lost; it may or may not have landed
    │   │   └── UnfinishedRetry       a dead letter's retry was begun; the next one, or a worker, finishes it
    │   ├── LeaseConflictError        someone else holds the lease; try again after it ends
    │   │   ├── StoppedError          it was stopped, and does not run until someone resumes it
    │   │   │   ├── RetiredError      a newer version was promoted; remove it from the code
    │   │   │   └── OtherApplicationError  another application is at work on it; give each an app_name
    │   │   └── EventLoopUnavailable  the event loop of async handlers is blocked or died; the work is for others
    │   ├── FingerprintMismatchError  the state belongs to another source definition
    │   └── UnreadableStateError      the document is corrupt or from a newer version
    ├── JobError                      a job could not be added, changed or run
    │   ├── InvalidTransition         a report came too late: the claim is no longer the reporter's
    │   └── PayloadError              the payload is not JSON, too large, or does not fit the handler
    ├── OutboxError                   a message could not be appended, or a processor cannot run
    │   ├── MessageError              the message is not JSON, too large, or outside a transaction
    │   ├── DeliveryError             a relay's other system did not take a message; says what it took before
    │   ├── SignatureError            a webhook's signature is missing, wrong or too old (in outbox.sinks)
    │   ├── ForeignCheckpointError    the checkpoint belongs to another database cluster
    │   └── CheckpointMismatchError   another instance moved the checkpoint; the handler's writes were rolled back
    └── PollerError                   a step of a trigger's tick failed
        ├── LeaseAcquireError         the lease could not be asked for
        ├── SourceConfigurationError  the source definition is wrong; a retry cannot help
        │   └── MissingGrantError     the database role may not see what a sound read needs
        ├── RestoredSourceError       the source was restored, or failed over, behind the checkpoint
        ├── FetchError                rows could not be read; a retry can help
        │   └── UnreadableRowError    a row holds what Python has no value for; it and those behind it wait
        ├── HandlerError              the user's handler failed
        │   ├── TransactionEndedError the handler ended context.transaction; effects may be kept, so it is not repeated
        │   └── OperationFailed       an orchestration failed, or took too long (in engines.operations)
        ├── CommitError               the checkpoint could not be recorded; the batch will be delivered again
        ├── LostLeaseError            the lease is no longer ours; nothing was committed
        └── SerializationError        a cursor in the state could not be understood

A message names the thing, the fact and the next step. No message ever holds a password.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


class DbError(Exception):
    """Base of every error Holdfast raises."""


class ConfigurationError(DbError):
    """Something the caller passed is wrong. A retry cannot help."""


class MissingDependencyError(ConfigurationError):
    """An optional dependency is needed and not installed."""


class WorkerDiedError(DbError):
    """A part of a worker process died, and the process ended for it.

    ``has_drained`` says whether everything else that was begun had finished.
    """

    def __init__(self, message: str, *, has_drained: bool) -> None:
        super().__init__(message)
        self.has_drained = has_drained


class DbConnectionError(DbError):
    """The database could not be reached. A retry can help."""


class QueryError(DbError):
    """A read failed."""


class WriteError(DbError):
    """A write failed."""


class NotFoundError(DbError):
    """Exactly one row was asked for and there was none."""


class CursorSerializationError(DbError):
    """A value cannot serve as a cursor, or a stored cursor cannot be read back."""


class StateStoreError(DbError):
    """The state document could not be read or written."""


class Conflict(StateStoreError):  # noqa: N818 - the name is the store vocabulary of the design
    """The document changed since it was read. Nothing was written."""


class RegistryLocked(Conflict):
    """The registry's lock is not the caller's: another job's, or nobody's any more. Nothing was written (HTTP 409).

    ``holder_job_id`` is the job that has the lock (empty when nobody has), ``locked_until`` when it runs out.
    """

    def __init__(self, message: str, *, holder_job_id: str = "", locked_until: datetime | None = None) -> None:
        super().__init__(message)
        self.holder_job_id = holder_job_id
        self.locked_until = locked_until


class AlreadyRunning(Conflict):
    """Another execution of a singleton, or of the same piece of business, is at work. Over HTTP a 409.

    Args:
        comes_first: whether the refused is the oldest of those that met, and tries again before the others do.
    """

    def __init__(self, message: str, *, comes_first: bool = False) -> None:
        super().__init__(message)
        self.comes_first = comes_first


class Unavailable(StateStoreError):  # noqa: N818 - the name is the store vocabulary of the design
    """The store did not take the request. Nothing was written; a retry can help."""


class UndoneError(Unavailable):
    """The database undid ``context.transaction`` or could not open it, and that is not the handler's fault."""


class Ambiguous(StateStoreError):  # noqa: N818 - the name is the store vocabulary of the design
    """The answer to a write was lost: read once to learn whether it landed."""


class UnfinishedRetry(Ambiguous):
    """The retry of a dead letter was begun and could not be finished; its message may have been sent.

    The next retry finishes it under the same message id, and so does any worker.
    """


class LeaseConflictError(StateStoreError):
    """Someone else holds a live lease. Try again after it ends."""


class StoppedError(LeaseConflictError):
    """It was stopped or retired: there is nothing to do until someone changes that."""


class RetiredError(StoppedError):
    """A newer version was promoted: it will not run any more."""


class OtherApplicationError(StoppedError):
    """A worker of another application holds a live lease: two applications would share one checkpoint."""


class EventLoopUnavailable(LeaseConflictError):  # noqa: N818 - says what happened, like the store vocabulary
    """The event loop of async handlers is blocked by another handler, or has died: the work is left to others."""


class FingerprintMismatchError(StateStoreError):
    """The stored checkpoint belongs to another source definition."""


class UnreadableStateError(StateStoreError):
    """The state document is corrupt, or was written by a newer version."""


class JobError(DbError):
    """A job could not be added, changed or run."""


class InvalidTransition(JobError):  # noqa: N818 - the name is the vocabulary of the design
    """A report came too late: the claim is no longer the reporter's. Nothing was changed."""


class PayloadError(JobError):
    """A payload is not JSON, is too large, or does not fit the handler. Nothing was enqueued."""


class OutboxError(DbError):
    """A message could not be appended, or a processor cannot run."""


class MessageError(OutboxError):
    """A message is not JSON, is too large, or was appended outside a transaction. Nothing was appended."""


class DeliveryError(OutboxError):
    """A sink could not deliver a message. What it delivered before that is kept and not sent again.

    Args:
        message: what happened, and the next step.
        is_permanent: the same request will be refused again: ``on_error`` decides about the message at once.
        retry_after_seconds: how long the other system asks to wait before the next try.
        delivered: the ids of the messages that the other system has for sure.
        about: the ids of the messages that were not taken, when those are known; else any that is not delivered.
    """

    def __init__(
        self,
        message: str,
        *,
        is_permanent: bool = False,
        retry_after_seconds: float | None = None,
        delivered: Iterable[str] = (),
        about: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
        self.retry_after_seconds = retry_after_seconds
        self.delivered = tuple(delivered)
        self.about = tuple(about)


class ForeignCheckpointError(OutboxError):
    """A checkpoint or the outbox belongs to another database cluster. Nothing was read or changed."""


class CheckpointMismatchError(OutboxError):
    """The stored checkpoint is not the expected one: another instance is at work. The effects were rolled back."""


class PollerError(DbError):
    """A step of a trigger's tick failed."""


class LeaseAcquireError(PollerError):
    """The lease could not be asked for (not: it was refused)."""


class SourceConfigurationError(PollerError):
    """The source definition is wrong. A retry cannot help."""


class MissingGrantError(SourceConfigurationError):
    """The database role may not see what a sound read needs."""


class RestoredSourceError(PollerError):
    """Rows that a checkpoint has passed may have been taken back, or its ids mean nothing here. Nothing was delivered.

    It goes on once someone says where: the message names the choices.
    """


class FetchError(PollerError):
    """Rows could not be read. A retry can help."""


class UnreadableRowError(FetchError):
    """A row holds what Python, or its driver, has no value for. Those before it are delivered; it is not skipped."""


class HandlerError(PollerError):
    """The user's handler failed; the batch was not committed and will be delivered again."""


class TransactionEndedError(HandlerError):
    """The handler ended ``context.transaction`` itself, so a part of its effects may be kept. It is not repeated."""


class CommitError(PollerError):
    """The checkpoint could not be recorded; the batch will be delivered again."""


class LostLeaseError(PollerError):
    """The lease is no longer ours. Nothing was committed."""


class SerializationError(PollerError):
    """A cursor found in the state document could not be understood."""


UNANSWERED = (DbConnectionError, Unavailable, Ambiguous)
"""What fails because a database or store does not answer: nothing is wrong, and nothing can be recorded there now."""
