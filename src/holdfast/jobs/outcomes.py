"""What a handler may raise to say how its job should end."""

from __future__ import annotations


class Retry(Exception):  # noqa: N818 - a wish, not a mistake
    """Raise it to fail this attempt and choose the pause before the next one. It counts as a failure."""

    def __init__(self, reason: str = "the handler asked for a retry", *, in_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.in_seconds = None if in_seconds is None else max(0.0, in_seconds)


class Snooze(Exception):  # noqa: N818 - a wish, not a mistake
    """Raise it to run the job later. It is not a failure, and no attempt is used up."""

    def __init__(self, reason: str = "snoozed", *, in_seconds: float) -> None:
        super().__init__(reason)
        self.in_seconds = max(0.0, in_seconds)


class Discard(Exception):  # noqa: N818 - a wish, not a mistake
    """Raise it to send the job to the dead letters at once: trying again could not help."""


class JobCancelled(Exception):  # noqa: N818 - a wish, not a mistake
    """Raised by ``context.raise_if_stopped()`` in a job that was cancelled: let it through."""
