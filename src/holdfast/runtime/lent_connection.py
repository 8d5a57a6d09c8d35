"""The connection that a handler is lent: everything a SQLAlchemy connection can do, except end its transaction.

What would end it is refused before it reaches the database, as far as that can be seen from outside: it is a courtesy,
a better message, earlier. Whether the transaction is still the one that was begun is *proved* at its end, by
``runtime.transaction``: a procedure, the driver's own connection or the database itself may have ended it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection, CursorResult, Engine
from sqlalchemy.schema import ExecutableDDLElement

from ..core.errors import HandlerError
from ..database.deadlines import ANSWER_SECONDS, Deadline
from ..database.drivers import let_take_turns
from ..database.errors import may_undo_transaction, undoes_transaction
from .driver_state import is_closed, is_idle

_COMMENTS = r"(?:\s|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*.*?\*/)*"
_ENDS_IT = re.compile(
    _COMMENTS
    + r"(?:(?:COMMIT|END|ABORT|BEGIN)\b|START\s+TRANSACTION|ROLLBACK\b(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b)"
    + r"|PREPARE\s+TRANSACTION)",
    re.I | re.S,
)
_COMMITS_ON_MYSQL = re.compile(
    _COMMENTS
    + r"(?:ALTER|CREATE(?!\s+TEMPORARY)|DROP(?!\s+TEMPORARY)|RENAME|TRUNCATE|LOCK\s+TABLES?|UNLOCK|GRANT|REVOKE|"
    r"ANALYZE|OPTIMIZE|REPAIR|FLUSH|RESET|LOAD\s+INDEX|INSTALL|UNINSTALL|SET\s+(?:SESSION\s+|@@)?AUTOCOMMIT)\b",
    re.I | re.S,
)
_MYSQL = ("mysql", "mariadb")
OVER = (
    "context.transaction was used after its delivery had ended. Use it only inside the handler, and await or join what "
    "you start there."
)
UNDONE = (
    "A statement of the handler failed and was caught, and the database has undone the transaction with it, so nothing "
    "was kept. Put statements that may fail into context.transaction.begin_nested(), or let the error out."
)


class Phase(Enum):
    """Whose connection it is: being opened, the handler's, ours again to settle it, nobody's."""

    OPENING = 1
    LENT = 2
    SETTLING = 3
    OVER = 4


class LentConnection(Connection):
    """A connection inside a transaction that only Holdfast ends.

    Its guards watch the thread that the handler runs on. What they refuse dooms the transaction: a handler that
    swallows the refusal and returns has failed all the same.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.in_use = threading.RLock()
        self.refusal: str | None = None
        self.has_ended = False  # it was seen without a transaction, and no error had undone that
        self.is_undone = False
        self.may_be_undone = False
        self.has_raw_users = False  # the driver's own connection, or several statements in one, which nobody watches
        self.has_lent_driver = False
        self.is_cut = False
        self.met: BaseException | None = None  # the driver's last error that the handler met on it
        self._phase = Phase.OPENING
        self._thread = threading.get_ident()
        self._lent: Any = None
        self._options = self._execution_options
        self._has_begun = False
        self._deadline: Deadline | None = None

    def begin_ours(self) -> None:
        """Open it for statements of Holdfast's own, which the server has to answer within seconds."""
        self._deadline = Deadline(self)
        self._deadline.set(ANSWER_SECONDS)

    def lend(self) -> None:
        """Let the handler use it, on this thread, and wait for its statements as long as they take."""
        if self._deadline is not None:
            self._deadline.lift()
        self._lent, self._options = self.driver, self._execution_options
        self._has_begun = not is_idle(self.dialect.driver, self._lent)
        self._phase, self._thread = Phase.LENT, threading.get_ident()

    def go_on_here(self) -> None:
        """Let the handler use it on this thread: the steps of an ``async def`` handler have one of their own.

        Raises:
            HandlerError: it was taken back.
        """
        if self._phase is not Phase.LENT:
            raise HandlerError(OVER)
        self._thread = threading.get_ident()

    def take_back(self) -> None:
        """Let only this thread use it, as it was: what the handler left behind is refused from now on."""
        self._execution_options = self._options
        self._phase, self._thread = Phase.SETTLING, threading.get_ident()
        if self._deadline is not None:
            self._deadline.set(ANSWER_SECONDS)

    def forget(self) -> None:
        """Let nobody use it any more."""
        self._phase = Phase.OVER

    # What handlers do

    def execute(self, statement: Any, *arguments: Any, **options: Any) -> CursorResult[Any]:
        """Execute a statement of the handler, unless it would end the transaction."""
        with self._used(statement):
            result: CursorResult[Any] = super().execute(statement, *arguments, **options)
            if arguments and isinstance(arguments[0], (list, tuple)) and self.dialect.driver == "psycopg":
                self._count_idle_time()
            return result

    def exec_driver_sql(self, statement: str, *arguments: Any, **options: Any) -> CursorResult[Any]:
        """Execute a text of the handler, unless it would end the transaction."""
        with self._used(statement):
            result = super().exec_driver_sql(statement, *arguments, **options)
            if arguments and isinstance(arguments[0], list) and self.dialect.driver == "psycopg":
                self._count_idle_time()
            return result

    def scalar(self, statement: Any, *arguments: Any, **options: Any) -> Any:
        """Execute a statement of the handler, and return the first value of its first row."""
        return self.execute(statement, *arguments, **options).scalar()

    @property
    def connection(self) -> Any:
        """Return the driver's connection. What is done there nobody watches; it is still proved at the end.

        It never goes back to its pool: a handler that keeps it would write into the next one's transaction.
        """
        self._require_ours()
        if self._phase is Phase.LENT:
            self.look()
            self.has_raw_users = self.has_lent_driver = True
            if self.dialect.driver == "pymysql":
                let_take_turns(self._lent)
        return super().connection

    @property
    def own_driver(self) -> Any:
        """Return the driver's connection for statements of Holdfast's own, said for the handler."""
        self._require_ours()
        return self.driver

    @property
    def info(self) -> Any:
        """Return the notes that go with the driver's connection, which nobody uses by that."""
        return super().connection.info

    def commit(self) -> None:
        """Refuse: the handler returns to commit."""
        self._end("commit()", super().commit)

    def rollback(self) -> None:
        """Refuse: the handler raises to roll back."""
        self._end("rollback()", super().rollback)

    def close(self) -> None:
        """Refuse: it is closed when the handler has ended."""
        self._end("close()", super().close)

    def begin(self) -> Any:
        """Refuse: a transaction is open already. ``begin_nested()`` makes a savepoint."""
        return self._end("begin()", super().begin)

    def begin_twophase(self, xid: Any = None) -> Any:
        """Refuse: a transaction is open already."""
        return self._end("begin_twophase()", lambda: super(LentConnection, self).begin_twophase(xid))

    def detach(self) -> None:
        """Refuse: the connection goes back to its pool."""
        self._end("detach()", super().detach)

    def invalidate(self, exception: BaseException | None = None) -> None:
        """Refuse: throwing it away would undo the transaction. SQLAlchemy throws away what broke, by an exception."""
        if exception is not None:
            super().invalidate(exception)
        else:
            self._end("invalidate()", super().invalidate)

    def _commit_impl(self) -> None:
        """Refuse a commit that comes from elsewhere, such as from an ORM Session in full control."""
        self._end("a commit", super()._commit_impl)

    def _rollback_impl(self) -> None:
        """Refuse a rollback that comes from elsewhere, such as from an ORM Session on this connection."""
        self._end("a rollback", super()._rollback_impl)

    # What Holdfast does

    @property
    def is_ours(self) -> bool:
        """Return whether Holdfast has it, before the handler or after it."""
        return self._phase in (Phase.OPENING, Phase.SETTLING)

    # The guards

    @contextmanager
    def _used(self, statement: object) -> Iterator[None]:
        self._require_ours()
        with self.in_use:
            if self._phase is Phase.LENT:
                self.look()
                self._guard(statement)
            yield

    def _require_ours(self) -> None:
        if self._phase is Phase.OVER or (self._phase is Phase.SETTLING and self._thread != threading.get_ident()):
            raise HandlerError(OVER)
        if self._thread != threading.get_ident():
            self._refuse(
                "context.transaction was used from another thread than its handler's. Use it where the handler runs, "
                "and hand results to other threads instead."
            )

    def _guard(self, statement: object) -> None:
        if self.has_been_undone:
            raise HandlerError(UNDONE)
        said = statement.text if isinstance(statement, TextClause) else statement
        is_mysql = self.dialect.name in _MYSQL
        ends_it = isinstance(said, str) and (_ENDS_IT.match(said) or (is_mysql and _COMMITS_ON_MYSQL.match(said)))
        if self.dialect.driver == "psycopg" and isinstance(said, str) and ";" in said:
            self.has_raw_users = True
        if ends_it or (is_mysql and isinstance(said, ExecutableDDLElement)):
            self._refuse(
                f"'{str(said).strip()[:40]}' would end context.transaction and part the handler's writes from what "
                "records them as done. Leave that to Holdfast: return to commit, raise to roll back; change tables "
                "elsewhere."
            )

    def _end(self, what: str, really: Callable[[], Any]) -> Any:
        if self._phase in (Phase.OPENING, Phase.SETTLING) and self._thread == threading.get_ident():
            return really()
        self._require_ours()
        return self._refuse(
            f"The handler called {what} on context.transaction, which is refused: its writes and the record that they "
            "are done commit together. Leave that to Holdfast: return to commit, raise to roll back; "
            "begin_nested() makes a savepoint."
        )

    def _refuse(self, why: str) -> NoReturn:
        self.refusal = self.refusal or why
        raise HandlerError(why)

    # What became of its transaction

    def look(self) -> None:
        """Notice, at no cost, that nothing is begun where a transaction was: somebody has ended it."""
        if self._has_begun and not (self.is_undone or self.is_cut) and is_idle(self.dialect.driver, self._lent):
            self.has_ended = True

    @property
    def has_been_undone(self) -> bool:
        """Return whether an error is known to have undone the transaction, so that a new one would begin by itself."""
        if self.dialect.name == "sqlite":
            return self.is_undone and not self.driver.in_transaction
        return self.is_undone

    @property
    def driver(self) -> Any:
        """Return the driver's own connection, for Holdfast's use; the same one once its pool has forgotten it."""
        return super().connection.driver_connection if self._lent is None else self._lent

    def leave_pool(self) -> None:
        """Let the pool open another in its place; nothing is said to the server, nor to whoever waits for it."""
        super().connection.detach()

    def close_driver(self) -> None:
        """Close the driver's connection of one that was cut off: its pool does not know it any more."""
        if self._lent is not None:
            self._lent.close()

    def _handle_dbapi_exception(self, e: BaseException, *details: Any, **options: Any) -> NoReturn:
        """Learn what an error did to the transaction before SQLAlchemy reacts to it."""
        if self._phase is Phase.LENT:
            self.met = e
            self.look_after_break()
            self._note(e)
        super()._handle_dbapi_exception(e, *details, **options)

    def look_after_break(self) -> None:
        """Notice that the handler has closed the driver's connection, which no server did."""
        self.has_ended = self.has_ended or is_closed(self.dialect.driver, self._lent)

    def _note(self, error: BaseException) -> None:
        """Remember an error that undoes a whole transaction. PostgreSQL spoils it, and says so itself."""
        if self.has_ended:
            return
        if self.dialect.name == "sqlite":
            self.is_undone = self.is_undone or is_idle(self.dialect.driver, self._lent)
        elif self.dialect.name in _MYSQL:
            self.is_undone = self.is_undone or undoes_transaction(error)
            self.may_be_undone = self.may_be_undone or may_undo_transaction(error)

    def _count_idle_time(self) -> None:
        """Say something after many statements in one go: psycopg ends them so that the server counts no idle time."""
        self.driver.execute("SELECT 1")
