"""Claimed rows as jobs, although one of them may hold what cannot be read: that one is given up, its neighbours run.

No release of ours writes such a row. Rows are looked at value by value only after one of them could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import DateTime

from ...core.errors import JobError
from ...database.sqlite_types import SqliteMoment
from ...database.unreadable import MarkedRows, Rows, Unreadable, problem_in
from ..model import Attempt, Claim, ClaimedJob, Failure, JobId

CLAIMS = frozenset({"claim", "claim_merged", "claim_ids"})
"""The statements that return jobs, whose rows are told apart from one that cannot be read."""
_READINESS = attrgetter("ready_at", "id")
_PRIORITY = attrgetter("priority")
_NAMES = {"named_correlation_id": "correlation_id", "losses": "suspicions"}
_COLUMNS = tuple(_NAMES.get(name, name) for name in ClaimedJob._fields)
_NUMBERS = frozenset(
    {"failures", "max_attempts", "priority", "lease_seconds", "unique_seconds", "suspicions", "undone"}
)
_MISREAD = (ArithmeticError, AttributeError, TypeError, ValueError)
Bury = Callable[[Sequence[Failure]], object]


def readable_jobs(rows: Rows, job_of: Callable[[Any], ClaimedJob], bury: Bury) -> list[ClaimedJob]:
    """Return claimed rows as jobs, higher priority first, then in the order in which they became ready.

    Args:
        rows: what a claim has returned.
        job_of: makes a job of a row.
        bury: ends the attempts of jobs that cannot be read; each failure names the row and the column.
    """
    if not isinstance(rows, MarkedRows):
        try:
            return in_order(map(job_of, rows))
        except _MISREAD:  # looked at one by one
            pass
    failures = [_failure(row, problem) for row in rows if (problem := _problem(_COLUMNS, row)) is not None]
    buried = {failure.claim for failure in failures}
    jobs = in_order(job_of(row) for row in rows if _claim_of(row) not in buried)
    bury(failures)
    return jobs


def in_order(jobs: Iterable[ClaimedJob]) -> list[ClaimedJob]:
    """Return jobs, higher priority first, then in the order in which they became ready."""
    found = list(jobs)
    found.sort(key=_READINESS)
    found.sort(key=_PRIORITY, reverse=True)  # equals keep their order
    return found


def require_readable(job_id: JobId, columns: Sequence[str], row: Sequence[Any]) -> None:
    """Check the row of a job.

    Raises:
        JobError: it cannot be read; its column is named.
    """
    problem = _problem(columns, row)
    if problem is not None:
        raise JobError(_sentence(job_id, problem))


def _problem(columns: Sequence[str], row: Sequence[Any]) -> str | None:
    return problem_in(columns, map(_looked_at, columns, row))


def _looked_at(name: str, value: object) -> object:
    """Return a value, or ``Unreadable`` when it is not of its column's kind."""
    if isinstance(value, (datetime, Unreadable)) or value is None:
        return value
    if name.endswith(("_at", "_until")):
        return _MOMENT.read(value)
    if name in _NUMBERS and not isinstance(value, (int, float)):
        return Unreadable(f"holds {type(value).__name__} where a number is wanted", value)
    return value


def _claim_of(row: Sequence[Any]) -> Claim:
    return Claim(JobId(row[_ID]), Attempt(row[_ATTEMPT]))


def _failure(row: Sequence[Any], problem: str) -> Failure:
    claim = _claim_of(row)
    return Failure(claim, 0, _sentence(claim.id, problem), is_final=True)


def _sentence(job_id: JobId, problem: str) -> str:
    return (
        f"The row of job {job_id} in holdfast_jobs cannot be read: its {problem}. It was changed by something else "
        "than Holdfast: mend the row, then retry the job."
    )


_ID, _ATTEMPT = ClaimedJob._fields.index("id"), ClaimedJob._fields.index("attempt")
_MOMENT = SqliteMoment(DateTime())
