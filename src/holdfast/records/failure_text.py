"""A failure as one text: its words, and behind a mark its traceback.

Jobs tell their end through one column, also over the wire and into dead letters. So both parts travel together, and
whoever reads takes them apart here: the words are an error's text as ever, the traceback is for the role ``payload``.
"""

from __future__ import annotations

import re

from sqlalchemy import ColumnElement, func, or_

from ..core.redaction import public, without_secrets

# The policy takes "***" for something that it has removed before, so it leaves the mark as it is.
MARK = "\n\n*** traceback ***\n"
_FRAME = re.compile(r'^[ |]+File "(?:[^"\n]*[/\\])?([\w-]{1,80}\.py)", line (\d{1,7})', re.MULTILINE)
_MOST_WORDS = 11_000  # characters: with a mark and a bounded traceback it fits where 20,000 are kept


def failure_text(words: str, traceback: str | None) -> str:
    """Return the text that is kept of a failure; ``failure_parts`` takes it apart."""
    if not traceback:
        return words
    return f"{_unmarked(without_secrets(words))[:_MOST_WORDS]}{MARK}{_unmarked(traceback)}"


def failure_parts(text: str) -> tuple[str, str | None]:
    """Return the words and the traceback of a failure, None when none was kept."""
    words, _, traceback = text.partition(MARK)
    return words, traceback or None


def words_of(text: str) -> str:
    """Return a failure without its traceback."""
    return failure_parts(text)[0]


def public_failure(text: str) -> str:
    """Return a failure as it may be logged: what of its words is public, and the file and line that it comes from."""
    words, traceback = failure_parts(text)
    return public(words) + _place_in(traceback or "", words)


def _place_in(traceback: str, words: str) -> str:
    """Return the last place in a traceback before what the error itself says, which may look like one."""
    kind = re.escape(words.partition(":")[0])
    own = re.search(rf"^[ |]*(?:[\w.<>]+\.)?{kind}(?::|$)", traceback, re.MULTILINE)
    frames = [] if own is None else _FRAME.findall(traceback, 0, own.start())
    return f" at {frames[-1][0]}:{frames[-1][1]}" if frames else ""


def words_contain(column: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """Match rows whose words hold a part, in any case; what only a traceback says is not looked at."""
    found = "%" + re.sub("[%_/]", r"/\g<0>", part) + "%"
    return or_(_like(column, f"{found}{MARK}%"), ~_like(column, f"%{MARK}%") & _like(column, found))


def _like(column: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
    return func.lower(column).like(func.lower(pattern), escape="/")


def _unmarked(text: str) -> str:
    return text.replace(MARK, "\n")
