"""How often and how late a failed handler is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from .clock import random_fraction
from .error_groups import leaves_of

_MOST_DOUBLINGS = 10
LONGEST_SECONDS = 100 * 366 * 86_400.0
"""A century: every database can add as much to a date, and every clock can wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with a ceiling. ``max_retries`` counts tries after the first one.

    ``jitter`` takes up to that fraction off each delay, at random, so that those who failed together do not come back
    together. ``retry_on`` are the errors that another try can help with; any other fails at once.
    """

    max_retries: int = 3
    base_delay_seconds: float = 1.0
    max_delay_seconds: float = 60.0
    exponential_base: float = 2.0
    jitter: float = 0.0
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception

    def __post_init__(self) -> None:
        for broken, message in (
            (self.max_retries < 0, "max_retries must be non-negative"),
            (self.base_delay_seconds <= 0, "base_delay_seconds must be positive"),
            (
                self.max_delay_seconds < self.base_delay_seconds,
                "max_delay_seconds must be >= base_delay_seconds",
            ),
            (self.exponential_base < 1, "exponential_base must be >= 1"),
            (not 0 <= self.jitter <= 1, "jitter must be between 0 and 1"),
            (not _are_errors(self.retry_on), "retry_on must be an exception class, or a tuple of them"),
        ):
            if broken:
                raise ValueError(message)

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
