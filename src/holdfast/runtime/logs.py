"""Holdfast's loggers: whatever is logged goes through the redaction policy first, whoever handles the records."""

from __future__ import annotations

import logging
from functools import lru_cache

from ..core.redaction import one_line, without_secrets

LOGGERS = (
    "holdfast",
    "holdfast.api",
    "holdfast.database",
    "holdfast.engines",
    "holdfast.engines.durabletask",
    "holdfast.jobs",
    "holdfast.migrations",
    "holdfast.outbox",
    "holdfast.processor",
    "holdfast.records",
    "holdfast.runtime",
    "holdfast.state",
    "holdfast.tokens",
    "holdfast.trigger",
    "holdfast.worker",
)
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class RedactingFilter(logging.Filter):
    """Takes secrets and personal data out of a record, and writes control characters out; lets every record through.

    Its error is replaced, too: formatters and tools that report errors print what they find in ``exc_info``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a record so that it may be handled by anyone."""
        record.args = _loggable(record.args)  # type: ignore[assignment] # a tuple or a mapping, as it was
        if not record.args:
            record.msg = _loggable(record.msg)
        for name in record.__dict__.keys() - _STANDARD:
            record.__dict__[name] = _loggable(record.__dict__[name])
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            logged = logged_error(error)
            record.exc_info, record.exc_text = (type(logged), logged, None), str(logged)
        return True


class LoggedError(Exception):
    """An error as a log may have it: of the same name, saying what of its traceback is public, and nothing else of it.

    ``of_handler`` is that of a handler which led to it, without the frames of ours; empty when there was none.
    """

    of_handler = ""


def logged_error(error: BaseException) -> LoggedError:
    """Return what a log has of an error. It has no frames, whose variables hold values, and no cause."""
    if isinstance(error, LoggedError):
        return error
    from ..database.error_text import handlers_traceback_in_public, traceback_in_public  # they need SQLAlchemy

    logged = _of_kind(type(error).__name__)(traceback_in_public(error))
    if error.__cause__ is not None:
        logged.of_handler = handlers_traceback_in_public(error.__cause__)
    return logged


@lru_cache(maxsize=256)
def _of_kind(name: str) -> type[LoggedError]:
    return type(name, (LoggedError,), {"__module__": "logged"})


def redact_logs(*names: str) -> None:
    """Have everything that these loggers log go through the policy."""
    for name in names:
        logging.getLogger(name).addFilter(_FILTER)


def _loggable(value: object) -> object:
    if isinstance(value, BaseException):
        from ..database.error_text import public_error_text

        return one_line(public_error_text(value))
    if isinstance(value, dict):
        return {name: _loggable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        items = [_loggable(each) for each in value]
        return items if isinstance(value, list) else tuple(items)
    if type(value).__module__.partition(".")[0] == "httpx":
        value = str(value)
    return one_line(without_secrets(value)) if type(value) is str else value


_FILTER = RedactingFilter()
redact_logs(*LOGGERS)
