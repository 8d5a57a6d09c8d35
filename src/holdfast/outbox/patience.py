"""What comes after a try that failed: another one, and how late, or none. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import DeliveryError
from ..core.retry import RetryPolicy
from .course import Failed

LONGEST_WAIT_SECONDS = 3600.0
"""However long a receiver asks to wait."""
TRIES_BEFORE_STOP = 10
"""Of what is refused for good, where the processor would stop: to mend that takes a person."""
REFUSED_IN_A_ROW = 10
"""As many messages one after the other may be refused for good. After that it is hardly about the messages."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How a processor deals with failures.

    Args:
        policy: how often and how late what failed is tried again.
        on_error: what is done about what fails for good; nothing does with ``retry``.
    """

    policy: RetryPolicy
    on_error: str

    def pause_after(self, failed: Failed, refused_in_a_row: int) -> float | None:
        """Return the seconds to wait before the next try; None when it failed for good.

        Args:
            failed: what failed, and how often it was tried.
            refused_in_a_row: how many messages were refused for good since the last one that was delivered.
        """
        if self.on_error != "retry" and failed.attempts > self._retries(failed, refused_in_a_row):
            return None
        others = max(0, refused_in_a_row - REFUSED_IN_A_ROW) if failed.is_permanent else 0
        delay = self.policy.delay_for_attempt(failed.attempts - 1 + others)
        return max(delay, min(_asked_for(failed.cause), LONGEST_WAIT_SECONDS))

    def _retries(self, failed: Failed, refused_in_a_row: int) -> int:
        most = self.policy.max_retries if self.policy.retries(failed.cause) else 0
        if not failed.is_permanent:
            return most
        if self.on_error == "stop":
            return min(most, TRIES_BEFORE_STOP - 1)
        return min(most, 1) if refused_in_a_row >= REFUSED_IN_A_ROW else 0


def _asked_for(error: BaseException) -> float:
    asked = error.retry_after_seconds if isinstance(error, DeliveryError) else None
    return asked if asked is not None and asked > 0 else 0.0  # also of NaN
