"""Logs of a command: one line each on stderr, without passwords, with a traceback only for the user's own handler."""

from __future__ import annotations

import logging
import os
import sysconfig
from pathlib import Path

from ..core.redaction import shown
from ..runtime.logs import logged_error

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_BORROWED = "holdfast.engines.durabletask"  # the library's own lines, several for every step of an orchestration
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def is_debugging() -> bool:
    """Return whether the person asked to see tracebacks."""
    return os.environ.get("HOLDFAST_DEBUG", "") not in ("", "0")


def configure_logging(verbosity: int = 0) -> None:
    """Send logs to stderr, unless the application has set up logging itself: warnings, with -v what happens, -vv all.

    With -v those are Holdfast's and the application's own: installed libraries, such as the Azure SDK with its lines
    for every request, would hide what happens, and log only warnings. Call it after the application was imported, so
    that its own choice counts.
    """
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLineFormatter(_FORMAT))
        if verbosity == 1:
            handler.addFilter(_is_warning_or_our_own)
        root.addHandler(handler)
        root.setLevel(logging.INFO if verbosity else logging.WARNING)
    if verbosity:
        logging.getLogger("holdfast").setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
    borrowed = logging.getLogger(_BORROWED)
    if verbosity == 1 and borrowed.level == logging.NOTSET:
        borrowed.setLevel(logging.WARNING)


def _is_warning_or_our_own(record: logging.LogRecord) -> bool:
    """Return whether a line is to be seen with -v: a warning, or not from where libraries are installed."""
    path = Path(record.pathname)
    if record.levelno >= logging.WARNING or path.is_relative_to(_PACKAGE):
        return True
    return not (path.is_relative_to(_STANDARD_LIBRARY) or _INSTALLED.intersection(path.parts))


class OneLineFormatter(logging.Formatter):
    """Formats a record as one line.

    A driver's traceback shows statements with the values of rows, so it is left out unless asked for. Where the user's
    handler failed, its own traceback follows: it is what the user must see.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        plain = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None, "stack_info": None})
        line = " ".join(super().format(plain).splitlines())
        trace = _traceback_of(record)
        return shown(f"{line}\n{trace}" if trace else line)


def _traceback_of(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return ""
    logged = logged_error(error)
    if is_debugging():
        return str(logged)
    return logged.of_handler if getattr(record, "event", "") == "handler_failed" else ""
