"""How often and how late a failed handler is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from .clock import random_fraction
from .error_groups import leaves_of
from .errors import ConfigurationError

_MOST_DOUBLINGS = 10
LONGEST_SECONDS = 100 * 366 * 86_400.0
"""A century: every database can add as much to a date, and every clock can wait for it."""


class _OutOfRangeError(ConfigurationError, ValueError):
    """A value that a retry policy cannot have; a ``ValueError`` as well, which azure-functions-db raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with a ceiling. ``max_retries`` counts tries after the first one.

    ``jitter`` takes up to that fraction off each delay, at random, so that those who failed together do not come back
    together. ``retry_on`` are the errors that another try can help with; any other fails at once.

    Raises:
        ConfigurationError: a value is out of range; it is a ``ValueError``, too.
    """

    max_retries: int = 3
    base_delay_seconds: float = 1.0
    max_delay_seconds: float = 60.0
    exponential_base: float = 2.0
    jitter: float = 0.0
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception

    def __post_init__(self) -> None:
        for name, broken, wanted in (
            ("max_retries", self.max_retries < 0, "must be non-negative: 0 is for no other try"),
            ("base_delay_seconds", self.base_delay_seconds <= 0, "must be positive: 1.0 is usual"),
            (
                "max_delay_seconds",
                self.max_delay_seconds < self.base_delay_seconds,
                f"must be >= base_delay_seconds={self.base_delay_seconds!r}: raise it, or lower that",
            ),
            ("exponential_base", self.exponential_base < 1, "must be >= 1: 1 is for delays that stay the same"),
            ("jitter", not 0 <= self.jitter <= 1, "must be between 0 and 1: 0.2 takes up to a fifth off each delay"),
            (
                "retry_on",
                not _are_errors(self.retry_on),
                "must be an exception class, or a tuple of them: write retry_on=(ConnectionError, TimeoutError)",
            ),
        ):
            if broken:
                raise _OutOfRangeError(f"RetryPolicy({name}={getattr(self, name)!r:.80}) {wanted}.")

    def delay_for_attempt(self, attempt: int) -> float:
        """Return the seconds to wait after failed try number ``attempt`` (the first is 0)."""
        try:
            delay = self.base_delay_seconds * self.exponential_base**attempt
        except OverflowError:
            delay = self.max_delay_seconds
        delay = min(delay, self.max_delay_seconds)
        return delay * (1 - self.jitter * random_fraction()) if self.jitter else delay

    def retries(self, error: BaseException) -> bool:
        """Return whether another try can help with this error of the handler; with a group, if with each one in it."""
        return isinstance(error, self.retry_on) or all(isinstance(leaf, self.retry_on) for leaf in leaves_of(error))


def _are_errors(given: object) -> bool:
    kinds = given if isinstance(given, tuple) else (given,)
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


def doubling(first: float, longest: float, times: int) -> float:
    """Return a pause that doubled so many times, up to the longest."""
    return min(max(first, longest), first * float(1 << min(times, _MOST_DOUBLINGS)))
