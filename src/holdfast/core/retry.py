"""How often and how late a failed handler is tried again."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with a ceiling. ``max_retries`` counts tries after the first one."""

    max_retries: int = 3
    base_delay_seconds: float = 1.0
    max_delay_seconds: float = 60.0
    exponential_base: float = 2.0

    def __post_init__(self) -> None:
        for broken, message in (
            (self.max_retries < 0, "max_retries must be non-negative"),
            (self.base_delay_seconds <= 0, "base_delay_seconds must be positive"),
            (
                self.max_delay_seconds < self.base_delay_seconds,
                "max_delay_seconds must be >= base_delay_seconds",
            ),
            (self.exponential_base < 1, "exponential_base must be >= 1"),
        ):
            if broken:
                raise ValueError(message)

    def delay_for_attempt(self, attempt: int) -> float:
        """Return the seconds to wait after failed try number ``attempt`` (the first is 0)."""
        try:
            delay = self.base_delay_seconds * self.exponential_base**attempt
        except OverflowError:
            return self.max_delay_seconds
        return min(delay, self.max_delay_seconds)


def doubling(first: float, longest: float, times: int) -> float:
    """Return a pause that doubled so many times, up to the longest."""
    return min(max(first, longest), first * float(1 << min(times, _MOST_DOUBLINGS)))
