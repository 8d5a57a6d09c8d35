"""Errors of users' code, in words that can be kept, and in words that can be logged."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from sqlalchemy.exc import DBAPIError

from ..core.error_groups import leaves_of
from ..core.errors import DbError
from ..core.redaction import escaped, public, without_secrets
from ..core.secret_forms import HIDDEN
from .errors import PASSING, Kind, kind_of

_PACKAGE = Path(__file__).resolve().parents[1]
_LONGEST_TRACEBACK = 8000
_CANNOT_BE_SHOWN = "the traceback cannot be shown"
_BACKGROUND = re.compile(r"\s?\(Background on this error at: [^)]*\)")  # SQLAlchemy ends its errors with it
_MOST_CAUSES = 10
_SHORTEST_FOREIGN = 4
_WITHOUT_VALUES = PASSING | {Kind.DENIED, Kind.MISSING_TABLE, Kind.MISSING_COLUMN}


def error_text(error: BaseException) -> str:
    """Return the kind of an error and what it says, without secrets. It may hold values: keep it as a payload."""
    return f"{type(error).__name__}: {_words(error)}"


def public_error_text(error: BaseException) -> str:
    """Return what of an error may be logged: ours in our words, of others what the policy lets through, and where."""
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__} of {'; '.join(map(public_error_text, _some_leaves(error)))}"
    if not _is_ours(error):
        kind = type(error).__name__
        said = public(error_text(error))
        return escaped(f"{kind if said == HIDDEN else said}{_place(error)}")
    text = _words(error)
    for foreign, instead in _foreign_texts(error, text):
        text = text.replace(foreign, instead)
    return escaped(text)


def _is_ours(error: BaseException) -> bool:
    """Return whether the words are Holdfast's: a handler may raise its errors, too, with words of its own."""
    frame = _last_frame(error)
    return isinstance(error, DbError) and (frame is None or _module(frame).partition(".")[0] == "holdfast")


def _is_about_the_database(error: BaseException) -> bool:
    """Return whether a driver speaks of its database and of names in it: such sentences hold no values."""
    return isinstance(error, DBAPIError) and kind_of(error) in _WITHOUT_VALUES


def _place(error: BaseException) -> str:
    frame = _last_frame(error)
    return "" if frame is None else f" at {Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"


def _module(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__", "?"))


def _last_frame(error: BaseException) -> TracebackType | None:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame


def bounded_traceback(error: BaseException) -> str:
    """Return the traceback of an error and its causes: where it is too long, the end, which says where it happened."""
    try:
        lines = escaped(without_secrets("".join(_not_underlined(error).format())))
    except Exception:  # an exception of the user's own may fail at this too
        lines = _CANNOT_BE_SHOWN
    return lines if len(lines) <= _LONGEST_TRACEBACK else "…" + lines[-_LONGEST_TRACEBACK:]


def _not_underlined(error: BaseException) -> traceback.TracebackException:
    """Return a traceback that does not underline what failed in each line.

    Python parses the line for that, and until 3.12 the parser has a state for all threads: of two that fail at the same
    time, one may get a SystemError instead of its traceback.
    """
    whole = traceback.TracebackException.from_exception(error)
    waiting: list[traceback.TracebackException | None] = [whole]
    while waiting:
        each = waiting.pop()
        if each is not None:
            each.stack = traceback.StackSummary.from_list([_without_columns(frame) for frame in each.stack])
            waiting += [each.__cause__, each.__context__, *(each.exceptions or ())]
    return whole


def _without_columns(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    return traceback.FrameSummary(frame.filename, frame.lineno, frame.name, line=frame.line)


def first_line(text: str) -> str:
    """Return the first line: a driver's error goes on with the statement and its values."""
    return next(iter(text.strip().splitlines()), "")


def traceback_in_public(error: BaseException, frames: TracebackType | None = None) -> str:
    """Return where an error and its causes come from, each in words that may be logged.

    ``frames`` are those to show of the error itself, where not all.
    """
    own = frames or error.__traceback__
    parts = [_frames(each, own if each is error else each.__traceback__) for each in _chain(error)]
    return escaped("\n\nled to:\n\n".join(reversed(parts)))


def handlers_traceback_in_public(error: BaseException) -> str:
    """Return where the error of a handler comes from, without the frames of ours that lead to it."""
    frames = error.__traceback__
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frames = frames.tb_next
    return traceback_in_public(error, frames)


def _frames(error: BaseException, frames: TracebackType | None) -> str:
    try:
        lines = traceback.StackSummary.extract(traceback.walk_tb(frames)).format()  # not underlined
        where = without_secrets("".join(lines))
    except Exception:  # lines come from a loader, which may be the user's own
        where = f"  {_CANNOT_BE_SHOWN}\n"
    return f"Traceback (most recent call last):\n{where}{public_error_text(error)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it: its causes, and the errors of a group."""
    waiting = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_CAUSES:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        cause = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        waiting += [] if cause is None else [cause]
        waiting += reversed(found.exceptions) if isinstance(found, BaseExceptionGroup) else []


def _some_leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return leaves_of(group)[:_MOST_CAUSES]


def _foreign_texts(error: BaseException, said: str) -> list[tuple[str, str]]:
    """Return what an error of ours repeats of those that led to it, the longest first, and what is said instead.

    An error that is shown with its kind is hidden there and nowhere else: ``KeyError('orders')`` must not hide the name
    of the table in the rest of our sentence.
    """
    texts: dict[str, str] = {}
    causes = list(_chain(error))[1:]
    about = [each for each in causes if _is_about_the_database(each)]
    about += [each.orig for each in about if isinstance(each, DBAPIError) and each.orig is not None]
    for cause in causes:
        if _is_ours(cause) or any(cause is each for each in about):
            continue
        whole = _forms(error_text(cause))
        if any(form in said for form in whole):
            texts |= dict.fromkeys(whole, public_error_text(cause))
        else:
            words = {*_forms(_words(cause)), *_forms(_words(getattr(cause, "orig", None) or cause))}
            texts |= dict.fromkeys(words, HIDDEN)
    found = [(text, instead) for text, instead in texts.items() if len(text) >= _SHORTEST_FOREIGN]
    return sorted(found, key=lambda each: len(each[0]), reverse=True)


def _forms(text: str) -> tuple[str, ...]:
    """Return a text as our sentences repeat it: all of it, its first line, and that within a sentence."""
    return text, first_line(text), first_line(text).rstrip(".")


def _words(error: BaseException) -> str:
    try:
        inside = "; ".join(map(error_text, _some_leaves(error))) if isinstance(error, BaseExceptionGroup) else ""
        return without_secrets(_BACKGROUND.sub("", str(error))) + (f": {inside}" if inside else "")
    except Exception:  # an exception of the user's own may fail at this too
        return "it cannot be shown"
