"""What a handler may raise to say how its job should end."""

from __future__ import annotations

from ..core.error_groups import leaves_of
from ..core.errors import HandlerError, LostLeaseError, TransactionEndedError
from .settings import checked_pause


class Retry(Exception):  # noqa: N818 - a wish, not a mistake
    """Raise it to fail this attempt and choose the pause before the next one. It counts as a failure."""

    def __init__(self, reason: str = "the handler asked for a retry", *, in_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.in_seconds = None if in_seconds is None else checked_pause("in_seconds", in_seconds)


class Snooze(Exception):  # noqa: N818 - a wish, not a mistake
    """Raise it to run the job later. It is not a failure, and no attempt is used up."""

    def __init__(self, reason: str = "snoozed", *, in_seconds: float) -> None:
        super().__init__(reason)
        self.in_seconds = checked_pause("in_seconds", in_seconds)


class Discard(Exception):  # noqa: N818 - a wish, not a mistake
    """Raise it to send the job to the dead letters at once: trying again could not help."""


class JobCancelled(Exception):  # noqa: N818 - a wish, not a mistake
    """Raised by ``context.raise_if_stopped()`` in a job that was cancelled: let it through."""


_DECIDING = (TransactionEndedError, LostLeaseError, JobCancelled, Discard, Retry)  # the first of them that is there


def require_raised(result: object) -> None:
    """Refuse a wish that a handler returned: nothing would come of it, and its job would be done.

    Raises:
        HandlerError: it is one; the message says what to write.
    """
    if isinstance(result, (Snooze, Retry, Discard)):
        kind = type(result).__name__
        raise HandlerError(f"The handler returned {kind}(…) instead of raising it. Write: raise {kind}(…)")


def decisive(error: BaseException) -> BaseException:
    """Return what decides how a job ends: of a group, such as that of a ``TaskGroup``, the wish of one of its tasks.

    A snooze counts if nothing else has failed, and of several the longest. Where no task had a wish, it is the group.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = leaves_of(error)
    for kind in _DECIDING:
        found = next((leaf for leaf in leaves if isinstance(leaf, kind)), None)
        if found is not None:
            return found
    snoozes = [leaf for leaf in leaves if isinstance(leaf, Snooze)]
    return max(snoozes, key=lambda snooze: snooze.in_seconds) if len(snoozes) == len(leaves) else error
