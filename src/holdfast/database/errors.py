"""What a database driver's error means: one classification, and one list of what may be tried again, for everybody.

Errors are told apart by the codes the databases give them: PostgreSQL's and ODBC's SQLSTATE, the numbers of MariaDB and
MySQL, SQLite's result codes. Their words are in the server's language, and are looked at only where one code stands for
many things. No sentence made here holds a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ..core.config import safe_url
from ..core.errors import DbConnectionError, DbError, Unavailable


class Kind(Enum):
    """What went wrong."""

    NO_FREE_CONNECTION = auto()
    """All of the pool's were in use."""
    UNREACHABLE = auto()
    """No connection could be made."""
    BROKEN = auto()
    """The connection there was broke; what was sent on it may or may not have been done."""
    UNAVAILABLE = auto()
    """The server could not, through no fault of the statement: it shuts down, has no memory, was asked to stop."""
    NOT_READY = auto()
    """A node of a cluster takes no statements, cut off from the others or catching up; nothing was done."""
    CONTENTION = auto()
    """Another transaction was in the way: a deadlock, a conflict, a lock that was waited for too long."""
    READ_ONLY = auto()
    """The server, the file or the transaction takes no writes."""
    DISK_FULL = auto()
    DENIED = auto()
    """The user has no right to do that."""
    MISSING_TABLE = auto()
    MISSING_COLUMN = auto()
    TOO_LARGE = auto()
    """More than the database takes at once."""
    CONSTRAINT = auto()
    OTHER = auto()


class NoFreeConnectionError(PoolTimeoutError):
    """Every connection of a named pool was in use for as long as one waits; the text says whose, and what to do."""


TRIED_AGAIN = frozenset({Kind.CONTENTION, Kind.BROKEN, Kind.NOT_READY})
"""What may well work when it is done again at once, where it is known that nothing of it was kept."""

PASSING = TRIED_AGAIN | {
    Kind.NO_FREE_CONNECTION,
    Kind.UNREACHABLE,
    Kind.UNAVAILABLE,
    Kind.READ_ONLY,
    Kind.DISK_FULL,
}
"""What is no fault of the statement: the same may work later, or elsewhere."""

Answer = tuple[type[DbError], str]
"""An error and its words, in which ``where``, ``why`` and ``sentence`` of a failure are filled in."""

ANSWERS_WHEN_PASSING: dict[Kind, Answer] = dict.fromkeys(PASSING, (Unavailable, "{sentence}"))

_STATES = {  # PostgreSQL's and ODBC's; the first two characters stand for a whole class
    "08": Kind.UNAVAILABLE,
    **dict.fromkeys(("0A", "21", "22", "42", "45", "P0"), Kind.OTHER),  # the statement, its values, or a trigger's word
    "23": Kind.CONSTRAINT,
    "25006": Kind.READ_ONLY,
    "3F000": Kind.MISSING_TABLE,
    "40": Kind.CONTENTION,
    "40002": Kind.CONSTRAINT,
    "42501": Kind.DENIED,
    "42703": Kind.MISSING_COLUMN,
    "42P01": Kind.MISSING_TABLE,
    "42S02": Kind.MISSING_TABLE,
    "42S22": Kind.MISSING_COLUMN,
    "53": Kind.UNAVAILABLE,
    "53100": Kind.DISK_FULL,
    "54": Kind.TOO_LARGE,
    "55": Kind.UNAVAILABLE,
    "55P03": Kind.CONTENTION,
    "57": Kind.UNAVAILABLE,
    "58": Kind.UNAVAILABLE,
    "XX": Kind.UNAVAILABLE,
}
_NUMBERS = {  # MariaDB's and MySQL's
    **dict.fromkeys((1020, 1205, 1213, 1412, 1613, 1614, 3058, 3572), Kind.CONTENTION),  # Galera's conflicts are 1213
    **dict.fromkeys((1036, 1290, 1792, 1836), Kind.READ_ONLY),
    **dict.fromkeys((1021, 1114), Kind.DISK_FULL),
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), Kind.DENIED),
    **dict.fromkeys((1051, 1146), Kind.MISSING_TABLE),
    1054: Kind.MISSING_COLUMN,
    **dict.fromkeys((1118, 1153, 1301), Kind.TOO_LARGE),
    **dict.fromkeys((1022, 1048, 1062, 1169, 1216, 1217, 1451, 1452, 1586, 3819, 4025), Kind.CONSTRAINT),
    1047: Kind.NOT_READY,  # Galera's word; also at the COMMIT, which is not begun then
    **dict.fromkeys((1037, 1040, 1041, 1053, 1203, 1226, 1317, 1969, 3024), Kind.UNAVAILABLE),
}
_RESULTS = {  # SQLite's primary result codes
    3: Kind.DENIED,
    5: Kind.CONTENTION,
    6: Kind.CONTENTION,
    7: Kind.UNAVAILABLE,
    8: Kind.READ_ONLY,
    9: Kind.UNAVAILABLE,
    10: Kind.UNAVAILABLE,
    13: Kind.DISK_FULL,
    14: Kind.UNAVAILABLE,
    15: Kind.UNAVAILABLE,
    18: Kind.TOO_LARGE,
    19: Kind.CONSTRAINT,
    23: Kind.DENIED,
}
_SQLITE_INTERRUPTED = 9
_INTERRUPTED = frozenset({"57014", 1317, 1969, 3024})
_SQLITE_WORDS = {  # of its code for any other error
    "no such table": Kind.MISSING_TABLE,
    "no such column": Kind.MISSING_COLUMN,
    "has no column": Kind.MISSING_COLUMN,
}
_NO_TEXT = "Could not decode to UTF-8"  # what SQLite's driver says of a value: the file and its path are well
_CLIENTS_OWN = range(2000, 3000)  # numbers that MySQL's clients give to what is wrong with a connection
_UNDOING = frozenset({1020, 1213})  # MariaDB and MySQL: a conflict, a deadlock
_LOCK_TIMEOUT = 1205  # undoes its statement, or everything if the server is set up so
_SPOILT = "25P02"  # PostgreSQL: a statement has failed, and the transaction can only be undone
_OPERATIONAL = {"OperationalError", "InterfaceError"}  # every driver has classes of these names
_OUR_TABLES = "holdfast_"
_MISMATCHED = frozenset({"42883", "42804", "22003", "22P02"})  # an operator or a value does not fit the type we know
_OUTDATED_PLAN = "cached plan must not change result type"
_BACKGROUND = re.compile(r" ?\(Background on this error at: [^)]*\)")
_SENTENCES = {
    Kind.NO_FREE_CONNECTION: "No free connection to {where}: {why}.",
    Kind.CONTENTION: "{where} was busy: {why}. Nothing was changed; try again.",
    Kind.NOT_READY: "{where} is not ready: {why}. Nothing was changed; try again, or name another node of its cluster.",
    Kind.READ_ONLY: "{where} takes no writes: {why}. Nothing was changed; name the primary, or wait until it is one.",
    Kind.DISK_FULL: "{where} has no room left: {why}. Nothing was changed; make room.",
    Kind.DENIED: "{where} does not let this user do that: {why}. Nothing was changed; grant it what is missing.",
}
_DOES_NOT_ANSWER = "{where} does not answer: {why}. Check that it runs and can be reached."
_SQLITE_SENTENCES = {  # where there is neither a server nor a primary
    Kind.READ_ONLY: "{where} takes no writes: {why}. Nothing was changed; let this user write the file and its folder.",
    Kind.UNAVAILABLE: "{where} cannot be used: {why}. Check its disk and its folder, and that it is a database.",
    Kind.UNREACHABLE: "{where} cannot be opened: {why}. Check the path, and that this user may use file and folder.",
}
MOST_SESSIONS = 1000
"""More than a pool holds: how many sessions with outdated plans are thrown away before giving up."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A driver's error, classified."""

    kind: Kind
    url: URL
    why: str
    """The first line of what the driver said."""
    was_sent: bool
    """Whether it was a statement that failed: neither a COMMIT nor making or preparing a connection."""
    is_ours: bool
    """Whether one of Holdfast's tables is named in it."""
    error: Exception

    @property
    def where(self) -> str:
        """Return the database, without its password."""
        return safe_url(self.url)

    @property
    def sentence(self) -> str:
        """Return what is wrong with the database, for what is no fault of the statement and for missing rights."""
        sentences = _SENTENCES | (_SQLITE_SENTENCES if self.url.get_backend_name() == "sqlite" else {})
        return sentences.get(self.kind, _DOES_NOT_ANSWER).format(where=self.where, why=self.why)

    def answered(self, by_kind: Mapping[Kind, Answer], otherwise: Answer) -> DbError:
        """Return what a part of Holdfast raises for it; of what is missing it tells where that is a table of ours."""
        is_known = self.is_ours or self.kind not in (Kind.MISSING_TABLE, Kind.MISSING_COLUMN)
        error, words = by_kind.get(self.kind, otherwise) if is_known else otherwise
        return error(words.format(where=self.where, why=self.why, sentence=self.sentence))


def kind_of(error: BaseException) -> Kind:
    """Return what an error of SQLAlchemy's, or of a driver itself, means."""
    if isinstance(error, PoolTimeoutError):
        return Kind.NO_FREE_CONNECTION
    if getattr(error, "connection_invalidated", False):
        return Kind.BROKEN
    original = getattr(error, "orig", None) or error
    known = _by_code(original)
    is_outside = isinstance(error, DBAPIError) and error.statement is None and _is_operational(error)
    if is_outside and known in (None, Kind.DENIED, Kind.UNAVAILABLE, Kind.OTHER):  # nobody was let in
        return Kind.UNREACHABLE
    return known or _without_code(original)


def _by_code(original: Any) -> Kind | None:
    """Return what its code tells, None for nothing."""
    result = getattr(original, "sqlite_errorcode", None)
    if result is not None:
        return _RESULTS.get(result & 0xFF) or _by_words(str(original))
    code = code_of(original)
    if isinstance(code, int) and code in _NUMBERS:
        return _NUMBERS[code]
    state = state_of(original)
    return _STATES.get(state) or _STATES.get(state[:2])


def _by_words(text: str) -> Kind:
    return next((kind for words, kind in _SQLITE_WORDS.items() if words in text), Kind.OTHER)


def _without_code(original: Any) -> Kind:
    """Judge by the class of an error whose code is none, or is not known here."""
    if not _is_operational(original) or _NO_TEXT in str(original):
        return Kind.OTHER
    return Kind.BROKEN if is_the_clients(original) else Kind.UNAVAILABLE


def is_the_clients(original: Any) -> bool:
    """Return whether an error of a server's driver is its own, about its connection: no server has said that."""
    code = code_of(original)
    return code == 0 or code in _CLIENTS_OWN if isinstance(code, int) else not state_of(original)


def undoes_transaction(original: BaseException) -> bool:
    """Return whether MariaDB or MySQL has undone the whole transaction with this error, not the statement only."""
    return code_of(original) in _UNDOING


def may_undo_transaction(original: BaseException) -> bool:
    """Return whether MariaDB or MySQL has undone the whole transaction with this error, if it is set up to do so."""
    return code_of(original) == _LOCK_TIMEOUT


def spoils_transaction(original: BaseException) -> bool:
    """Return whether PostgreSQL refuses all but to undo: a statement before this one has failed."""
    return state_of(original) == _SPOILT


def _is_operational(error: BaseException) -> bool:
    return any(base.__name__ in _OPERATIONAL for base in type(error).__mro__)


def code_of(original: Any) -> object:
    """Return what a driver's own error has first: MySQL's drivers put the number there, pyodbc the SQLSTATE."""
    return next(iter(getattr(original, "args", ())), None)


def state_of(original: Any) -> str:
    """Return the SQLSTATE of a driver's own error, empty when it has none."""
    code = code_of(original)
    found = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return str(found) if found else code if isinstance(code, str) and len(code) == 5 else ""


def was_interrupted(error: BaseException) -> bool:
    """Return whether somebody stopped the statement, such as a limit on its time that its session has."""
    original = getattr(error, "orig", None) or error
    result = getattr(original, "sqlite_errorcode", None)
    if result is not None:
        return bool(result & 0xFF == _SQLITE_INTERRUPTED)
    return state_of(original) in _INTERRUPTED or code_of(original) in _INTERRUPTED


def origin(error: BaseException) -> BaseException | None:
    """Return the error of a driver, or whatever else, that one of ours was made of; another one is its own."""
    found: BaseException | None = error
    while isinstance(found, DbError):
        found = found.__cause__ or found.__context__
    return found


def may_be_tried_again(error: Exception) -> bool:
    """Return whether the same may well work at once, nothing of it having been kept.

    Of ours only ``Unavailable`` promises that. For a driver's own error, the caller knows whether it may be repeated.
    """
    found = origin(error)
    return found is not None and isinstance(error, (Unavailable, DBAPIError)) and kind_of(found) in TRIED_AGAIN


@contextmanager
def translating(engine: Engine, as_ours: Callable[[Failure], Exception]) -> Iterator[None]:
    """Raise what ``as_ours`` makes of an error of SQLAlchemy's or of the driver. Ours pass through."""
    try:
        yield
    except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
        raise as_ours(classified(engine.url, error)) from error


def classified(url: URL, error: Exception) -> Failure:
    """Return what an error of SQLAlchemy's, or of a driver itself, means in a database."""
    kind, why = kind_of(error), reason(error)
    if kind is Kind.NO_FREE_CONNECTION and not isinstance(error, NoFreeConnectionError):
        why = "raise pool_size"
    statement = getattr(error, "statement", None)
    is_ours = _OUR_TABLES in why or (kind is Kind.MISSING_COLUMN and _OUR_TABLES in str(statement))
    return Failure(kind, url, why, statement is not None, is_ours, error)


def reason(error: Exception) -> str:
    """Return the first line of what the driver said: the rest may hold the statement and its values."""
    first = str(getattr(error, "orig", None) or error).strip().split("\n", 1)[0]
    return _BACKGROUND.sub("", first).rstrip(".")


def advice(error: DBAPIError) -> str:
    """Return what to do about an error that says little by itself, as a sentence to append; mostly nothing."""
    if hasattr(error.orig, "sqlite_errorcode") and kind_of(error) is Kind.CONTENTION:
        return (
            " Another connection was writing all the while: keep transactions short, or wait longer with "
            'connect_args={"timeout": 30} in DbConfig.'
        )
    return ""


def is_connection_failure(error: DBAPIError) -> bool:
    """Return whether no connection could be made, or the one there was broke."""
    return kind_of(error) in (Kind.UNREACHABLE, Kind.BROKEN)


def is_outdated_plan(error: BaseException | None) -> bool:
    """Return whether PostgreSQL refused a plan that the session keeps from before a column's type changed.

    The session goes on refusing it, so throw it away and try another one.
    """
    return _OUTDATED_PLAN in str(getattr(error, "orig", None))


def is_schema_change(error: BaseException | None) -> bool:
    """Return whether the database's error is what a table that changed since it was looked up gives rise to."""
    if error is None:
        return False
    is_missing = kind_of(error) in (Kind.MISSING_TABLE, Kind.MISSING_COLUMN)
    return is_missing or state_of(getattr(error, "orig", None)) in _MISMATCHED or is_outdated_plan(error)


def connection_error(url: URL, error: Exception) -> DbConnectionError:
    """Return the error to raise when a database does not answer."""
    if url.get_backend_name() == "sqlite":
        return DbConnectionError(
            f"The SQLite file {safe_url(url)} cannot be used: {reason(error)}. Check that the path is right, that it "
            "is a database, and that no other process holds it locked."
        )
    return DbConnectionError(
        f"The database {safe_url(url)} does not answer: {reason(error)}. Check that it runs, its address and the "
        "credentials."
    )
