"""How a job may be declared: its names, numbers and limits, and a sentence for each that cannot be.

Everything is refused where it is written, before a row with it could reach the database.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ..core.errors import ConfigurationError
from ..core.key_text import key_problem, shown_key
from ..core.retry import LONGEST_SECONDS
from .model import LARGEST_ID, JobId, TopicLimits

MAX_NAME_LENGTH = 140  # history and dead letters put 'jobs:' in front of a topic, and hold 150
MAX_KEY_LENGTH = 200
ENGINE_TOPICS = "engine."  # of engines' messages, not of jobs
MAX_TAGS = 50
_SMALLEST_PRIORITY, _LARGEST_PRIORITY = -(2**15), 2**15 - 1
_LARGEST_INTEGER = 2**31 - 1
_LONGEST_LEASE_SECONDS = 7 * 86_400.0
_FIRST_YEAR = 1000  # of MariaDB's calendar

Rate = tuple[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """What holds for every job of a handler unless an enqueue says otherwise.

    ``max_attempts=None`` retries for ever; ``unique_seconds`` is the window of jobs that have a unique key;
    ``max_seconds`` is how long an attempt may run, None for as long as it takes; ``transactional`` says that the
    handler has no effects but those in ``context.transaction``.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    priority: int = 0
    max_attempts: int | None = 5
    lease_seconds: float = 30.0
    retry_base_seconds: float = 1.0
    retry_max_seconds: float = 3600.0
    unique_seconds: float | None = None
    max_seconds: float | None = None
    transactional: bool = False

    def __post_init__(self) -> None:
        checked_priority(self.priority)
        checked_max_attempts(self.max_attempts)
        checked_lease("lease_seconds", self.lease_seconds)
        checked_seconds("retry_base_seconds", self.retry_base_seconds)
        checked_seconds("retry_max_seconds", self.retry_max_seconds)
        if self.unique_seconds is not None:
            checked_seconds("unique_seconds", self.unique_seconds)
        if self.max_seconds is not None:
            checked_seconds("max_seconds", self.max_seconds)
        if self.retry_max_seconds < self.retry_base_seconds:
            raise ConfigurationError(
                f"retry_max_seconds={self.retry_max_seconds} is less than "
                f"retry_base_seconds={self.retry_base_seconds}. Raise it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(AttemptSettings):
    """How a job was declared, with the limits of its topic."""

    limits: TopicLimits = field(default_factory=TopicLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """How many jobs of a topic run at once, and how many start per ``(count, seconds)``."""

    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker works. The defaults: leases of 30 s are extended every 10 s, and looked after every 10 s."""

    concurrency: int = 10
    ahead: int = 1000
    beat_seconds: float = 10.0
    watchdog_seconds: float = 10.0
    poll_seconds: float = 1.0
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.ahead < 0:
            raise ConfigurationError("A worker needs concurrency of at least 1, and ahead of at least 0.")
        if min(self.beat_seconds, self.watchdog_seconds, self.poll_seconds) <= 0 or self.drain_seconds < 0:
            raise ConfigurationError("A worker's beat_seconds, watchdog_seconds and poll_seconds must be above 0.")
        times = (self.beat_seconds, self.watchdog_seconds, self.poll_seconds, self.drain_seconds)
        if not all(seconds <= LONGEST_SECONDS for seconds in times):
            raise ConfigurationError("A worker's times must be a century at most.")


def limits_of(
    *,
    concurrency: int | None = None,
    concurrency_per_key: int | None = None,
    rate: Rate | None = None,
    rate_per_key: Rate | None = None,
) -> TopicLimits:
    """Return the limits of a topic: how many jobs run at once, and how many start per ``(count, seconds)``.

    Raises:
        ConfigurationError: one of them is not a positive number, or not a pair of them.
    """
    count, seconds = _checked_rate("rate", rate)
    count_per_key, seconds_per_key = _checked_rate("rate_per_key", rate_per_key)
    return TopicLimits(
        max_running=None if concurrency is None else _checked_count("concurrency", concurrency),
        max_running_per_key=(
            None if concurrency_per_key is None else _checked_count("concurrency_per_key", concurrency_per_key)
        ),
        rate_count=count,
        rate_seconds=seconds,
        rate_count_per_key=count_per_key,
        rate_seconds_per_key=seconds_per_key,
    )


def checked_topic(kind: str, name: object) -> str:
    """Return ``name`` when it can name a topic, an operation or a periodic job.

    Raises:
        ConfigurationError: it is empty, too long, or holds what would be misread later.
    """
    problem = _text_problem(name, MAX_NAME_LENGTH)
    if problem is None and isinstance(name, str):
        if name.startswith("!"):
            problem = "it starts with '!', which has a meaning of its own"
        elif name != name.strip():
            problem = "it begins or ends with a space"
        else:
            return name
    raise ConfigurationError(f"{kind} {shown_key(name)} cannot be used: {problem}.")


def own_topic(topic: object, kind: str = "Topic") -> str:
    """Return the topic of jobs: any but those that hold the messages of engines.

    Raises:
        ConfigurationError: it cannot name a topic, or is an engine's.
    """
    checked = checked_topic(kind, topic)
    if checked.startswith(ENGINE_TOPICS):
        raise ConfigurationError(
            f"{kind} '{checked}' cannot be used: what starts with '{ENGINE_TOPICS}' holds the messages of engines."
        )
    return checked


def checked_key(kind: str, key: object) -> str:
    """Return ``key`` when it can be stored and compared in every database.

    Raises:
        ConfigurationError: it is empty, too long or holds control characters.
    """
    problem = _text_problem(key, MAX_KEY_LENGTH)
    if problem is None and isinstance(key, str):
        return key
    raise ConfigurationError(f"{kind} {shown_key(key)} cannot be used: {problem}.")


def checked_tags(tags: object) -> str:
    """Return tags as they are stored.

    Raises:
        ConfigurationError: they are not a list of texts, or too many.
    """
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ConfigurationError(f"tags must be a list of texts, not {type(tags).__name__}.")
    if len(tags) > MAX_TAGS:
        raise ConfigurationError(f"A job can have {MAX_TAGS} tags at most, not {len(tags)}.")
    return json.dumps([checked_key("Tag", tag) for tag in tags], ensure_ascii=False, separators=(",", ":"))


def checked_priority(priority: object) -> int:
    """Return a priority that its column can hold.

    Raises:
        ConfigurationError: it is not a whole number, or out of range.
    """
    if type(priority) is int and _SMALLEST_PRIORITY <= priority <= _LARGEST_PRIORITY:
        return priority
    raise ConfigurationError(
        f"priority={priority!r} cannot be used: give a whole number from {_SMALLEST_PRIORITY} to {_LARGEST_PRIORITY}."
    )


def checked_max_attempts(max_attempts: object) -> int | None:
    """Return how often a job may fail before it is a dead letter, None for ever.

    Raises:
        ConfigurationError: it is not a positive whole number.
    """
    return None if max_attempts is None else _checked_count("max_attempts", max_attempts, " or None for no maximum")


def checked_seconds(name: str, seconds: object) -> float:
    """Return a positive time that every database can add to a date.

    Raises:
        ConfigurationError: it is not one.
    """
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds <= LONGEST_SECONDS:
        return float(seconds)
    raise ConfigurationError(
        f"{name}={shown_key(seconds)} cannot be used: give a positive number of seconds, a century at most."
    )


def checked_job_id(number: int) -> JobId:
    """Return a number as that of a job.

    Raises:
        ConfigurationError: no database has a job of that number.
    """
    if abs(number) <= LARGEST_ID:
        return JobId(number)
    raise ConfigurationError(f"{shown_key(number)} is no job's id: ids are less than 2⁶³. Copy it from enqueue(…).id.")


def checked_pause(name: str, seconds: object) -> float:
    """Return a time to wait; a negative one is none.

    Raises:
        ConfigurationError: it is not a number of seconds.
    """
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds == seconds:  # not NaN
        return float(min(max(0, seconds), LONGEST_SECONDS))
    raise ConfigurationError(
        f"{name}={shown_key(seconds)} cannot be used: give a number of seconds, an int or a float."
    )


def checked_lease(name: str, seconds: object) -> float:
    """Return how long a lease may last: nobody takes a dead worker's job before it has run out.

    Raises:
        ConfigurationError: it is no time, or longer than a week.
    """
    lease = checked_seconds(name, seconds)
    if lease > _LONGEST_LEASE_SECONDS:
        raise ConfigurationError(
            f"{name}={seconds!r} is more than a week, and so long nobody would notice that a worker has died. Give "
            "less: beats extend it for as long as the job runs."
        )
    return lease


def checked_moment(name: str, moment: object) -> datetime:
    """Return a moment that means the same everywhere.

    Raises:
        ConfigurationError: it is no datetime, has no time zone, or is in years that not every database has.
    """
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise ConfigurationError(f"{name}={moment!r} cannot be used: give a datetime with a time zone.")
    try:
        year = moment.astimezone(UTC).year
    except OverflowError:
        year = 0
    if year < _FIRST_YEAR:
        raise ConfigurationError(
            f"{name}={moment!r} cannot be used: in UTC it must be in the years {_FIRST_YEAR} to 9999. Leave it out for "
            "a job that may run at once."
        )
    return moment


def _checked_count(name: str, count: object, alternative: str = "") -> int:
    if type(count) is int and 1 <= count <= _LARGEST_INTEGER:
        return count
    raise ConfigurationError(f"{name}={shown_key(count)} cannot be used: give a positive whole number{alternative}.")


def _checked_rate(name: str, rate: object) -> tuple[int | None, float | None]:
    if rate is None:
        return None, None
    if not isinstance(rate, tuple) or len(rate) != 2:
        raise ConfigurationError(f"{name}={rate!r} cannot be used: give (count, seconds), as in {name}=(100, 60).")
    return _checked_count(f"the count of {name}", rate[0]), checked_seconds(f"the seconds of {name}", rate[1])


def _text_problem(text: object, max_length: int) -> str | None:
    problem = key_problem(text, max_length)
    if problem is not None or not isinstance(text, str) or text.isprintable():
        return problem
    is_controlled = any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)
    return "it holds control characters" if is_controlled else None
