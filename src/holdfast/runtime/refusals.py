"""Whether what the database refuses at the end of a handler's transaction is the handler's doing.

A refusal that comes back each time must be counted against the handler, or its work would be repeated for ever; one
that passes by itself (a conflict, a failover, a full disk) must not.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ..core.error_groups import causes_of
from ..database.errors import (
    PASSING,
    Kind,
    is_outdated_plan,
    is_schema_change,
    kind_of,
    origin,
    reason,
    was_interrupted,
)


def passing_of(error: BaseException, is_ours: Callable[[BaseException], bool]) -> Exception | None:
    """Return the driver's error behind what a handler raised if it passes by itself, else None.

    One that the handler has asked for itself, by a limit on the time of its statements, does not.

    Args:
        error: what the handler raised.
        is_ours: whether an error is one of the handler's own transaction.
    """
    for met in filter(is_ours, causes_of(error)):
        cause = origin(met)
        if isinstance(cause, SQLAlchemyError) and kind_of(cause) in PASSING and not was_interrupted(cause):
            return cause
    return None


def refuses_commit(error: DBAPIError) -> bool:
    """Return whether the database looked at what the handler had written and did not take it."""
    return kind_of(error) not in PASSING


def refuses_record(error: BaseException) -> str | None:
    """Return what the driver said if Holdfast's tables could not be used as the handler had left the session."""
    cause = origin(error)
    if not isinstance(cause, DBAPIError):
        return None
    kind = kind_of(cause)
    is_denied = kind is Kind.DENIED or (kind is Kind.READ_ONLY and hasattr(cause.orig, "sqlite_errorcode"))
    is_hidden = is_schema_change(cause) and not is_outdated_plan(cause)
    return reason(cause) if is_denied or is_hidden else None
