"""What a database's answer, or the lack of one, means for the queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ...core.config import safe_url
from ...core.driver_errors import reason
from ...core.errors import Ambiguous, JobError, Unavailable

_MISSING_TABLE = ("no such table", "does not exist", "doesn't exist")
_TOO_MUCH = ("max_allowed_packet", "too large", "string or blob too big")
_CONTENTION = ("deadlock", "locked", "lock wait timeout", "could not serialize", "lock timeout", "record has changed")


@contextmanager
def translated(engine: Engine, *, is_commit: bool = False) -> Iterator[None]:
    """Turn driver errors into ours.

    Args:
        engine: where the queue is.
        is_commit: whether this is the end of a transaction: a connection that breaks then leaves its fate unknown.

    Raises:
        Ambiguous: the connection broke; a write may or may not have landed.
        Unavailable: nothing was written; a retry can help.
        JobError: a retry cannot help.
    """
    where = safe_url(engine.url)
    try:
        yield
    except PoolTimeoutError as error:
        raise Unavailable(f"No free connection to {where}: raise pool_size.") from error
    except DBAPIError as error:
        raise _as_ours(where, error, is_commit) from error
    except engine.dialect.loaded_dbapi.Error as error:  # from preparing a pooled connection: nothing was sent
        raise Unavailable(f"{where} does not answer: {error}. Check that it runs.") from error
    except SQLAlchemyError as error:
        raise JobError(f"The queue in {where} could not be used: {error}") from error


def _as_ours(where: str, error: DBAPIError, is_commit: bool) -> Exception:
    why = reason(error)
    if "holdfast_" in why and any(hint in why for hint in _MISSING_TABLE):
        return JobError(f"The tables of the queue are missing in {where}. Create them with 'holdfast migrate'.")
    if isinstance(error, IntegrityError) and "held" in why:
        return JobError("Another job of that topic holds the same unique key. Wait until it has ended, or cancel it.")
    if any(hint in why.lower() for hint in _TOO_MUCH):
        return JobError(f"{where} does not take so much at once: {why}.")
    if error.connection_invalidated and (is_commit or error.statement is not None):
        return Ambiguous(f"The connection to {where} broke before an answer came: {why}")
    if isinstance(error, IntegrityError) or "constraint" in why.lower():  # MariaDB's driver calls a CHECK operational
        return JobError(f"A rule of the queue's tables in {where} refused a change: {why}. Nothing was changed.")
    if any(hint in why.lower() for hint in _CONTENTION):
        return Unavailable(f"{where} was busy: {why}. It is tried again.")
    if error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError)):
        return Unavailable(f"{where} does not answer: {why}. Check that it runs and can be reached.")
    return JobError(f"The queue in {where} could not be used: {why}")
