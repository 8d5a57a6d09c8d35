"""Ways of ending or breaking a transaction that was lent, or of only seeming to, one small function each.

``leads_to`` says, for each database that has the way, what the transaction is afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.runtime.locks import deadlock, wait_for_a_lock_too_long
from tests.runtime.scenes import Scene

POSTGRES, MARIADB, SQLITE = "postgresql", "mariadb", "sqlite"
EVERYWHERE = (POSTGRES, MARIADB, SQLITE)


class Then(StrEnum):
    """What a way leaves behind when the handler goes on."""

    WHOLE = "the transaction is the one that was begun"
    ENDED = "it was ended by the handler, and what came before may have been kept"
    UNDONE = "the database has undone it, or can only undo it, because of an error that was caught"
    FAILED = "the way raises by itself, and the handler lets that out"
    BROKEN = "the database has undone it, through no fault of the handler"
    OPEN = "either the way is refused, or the transaction is whole"


@dataclass(frozen=True)
class Way:
    """Something a handler does to its transaction between two effects."""

    name: str
    do: Callable[[Scene], None]
    leads_to: dict[str, Then]


WAYS: dict[str, Way] = {}
_Do = Callable[[Scene], None]


def way(**leads_to: Then) -> Callable[[_Do], _Do]:
    """Enter a function into the table, under its own name."""

    def enter(do: _Do) -> _Do:
        _enter(do.__name__.replace("_", "-"), do, leads_to)
        return do

    return enter


def everywhere(then: Then) -> Callable[[_Do], _Do]:
    return way(**dict.fromkeys(EVERYWHERE, then))


def _enter(name: str, do: _Do, leads_to: dict[str, Then]) -> None:
    assert name not in WAYS, name
    WAYS[name] = Way(name, do, leads_to)


# Statements, in every form in which they can be said


def _said(sql: str) -> _Do:
    return lambda scene: scene.say(sql)


def _through_the_driver(sql: str) -> _Do:
    return lambda scene: scene.driver.cursor().execute(sql) and None


def _enter_statement(sql: str, *databases: str, then: Then = Then.ENDED) -> None:
    name = sql.lower().replace(" ", "-").replace("'", "")
    leads_to = dict.fromkeys(databases, then)
    _enter(name, _said(sql), leads_to)
    _enter(f"{name}-behind-a-comment", _said(f"/* done */ {sql}"), leads_to)
    _enter(f"{name}-behind-a-comment-line", _said(f"-- done\n{sql}"), leads_to)
    _enter(f"{name}-through-the-drivers-cursor", _through_the_driver(sql), leads_to)


_enter_statement("COMMIT", *EVERYWHERE)
_enter_statement("ROLLBACK", *EVERYWHERE)
_enter_statement("COMMIT AND CHAIN", POSTGRES, MARIADB)
_enter_statement("ROLLBACK AND CHAIN", POSTGRES, MARIADB)
_enter("end", _said("END"), dict.fromkeys((POSTGRES, SQLITE), Then.ENDED))
_enter("abort", _said("ABORT"), {POSTGRES: Then.ENDED})
_enter("begin", _said("BEGIN"), {POSTGRES: Then.OPEN, MARIADB: Then.ENDED, SQLITE: Then.FAILED})
_enter("start-transaction", _said("START TRANSACTION"), {POSTGRES: Then.OPEN, MARIADB: Then.ENDED})
_enter("set-autocommit", _said("SET autocommit = 1"), {MARIADB: Then.ENDED})
_enter("commit-and-begin-in-one", _through_the_driver("COMMIT; BEGIN"), {POSTGRES: Then.ENDED})


def _prepare(prefix: str) -> _Do:
    return lambda scene: scene.say(f"{prefix}PREPARE TRANSACTION '{scene.item}:{scene.unique}'")


_enter("prepare-transaction", _prepare(""), {POSTGRES: Then.ENDED})
_enter("prepare-transaction-behind-a-comment", _prepare("/* later */ "), {POSTGRES: Then.ENDED})


@everywhere(Then.ENDED)
def commit_of_the_driver(scene: Scene) -> None:
    scene.driver.commit()


@everywhere(Then.ENDED)
def rollback_of_the_driver(scene: Scene) -> None:
    scene.driver.rollback()


@way(mariadb=Then.ENDED)
def autocommit_of_pymysql(scene: Scene) -> None:
    scene.driver.autocommit(True)


@way(sqlite=Then.ENDED)
def autocommit_of_sqlite3(scene: Scene) -> None:
    scene.driver.isolation_level = None


@way(postgresql=Then.WHOLE)
def autocommit_that_psycopg_refuses(scene: Scene) -> None:
    with suppress(psycopg.ProgrammingError):
        scene.driver.autocommit = True


@way(sqlite=Then.ENDED)
def executescript(scene: Scene) -> None:
    scene.driver.executescript("SELECT 1")


# Procedures, and statements that change tables

PROCEDURES = {
    POSTGRES: (
        "CREATE PROCEDURE commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'",
        "CREATE PROCEDURE rolls_back() LANGUAGE plpgsql AS 'BEGIN ROLLBACK; END'",
    ),
    MARIADB: (
        "CREATE PROCEDURE commits() COMMIT",
        "CREATE PROCEDURE rolls_back() ROLLBACK",
        "CREATE PROCEDURE rolls_back_when_it_fails() BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION ROLLBACK; "
        "INSERT INTO once VALUES (1); END",
    ),
    SQLITE: (),
}


@way(postgresql=Then.FAILED, mariadb=Then.ENDED)
def procedure_that_commits(scene: Scene) -> None:
    scene.say("CALL commits()")


@way(postgresql=Then.FAILED, mariadb=Then.ENDED)
def procedure_that_rolls_back(scene: Scene) -> None:
    scene.say("CALL rolls_back()")


@way(postgresql=Then.UNDONE)
def procedure_that_commits_and_is_caught(scene: Scene) -> None:
    with suppress(DBAPIError):
        scene.say("CALL commits()")


@way(postgresql=Then.UNDONE)
def block_that_rolls_back_and_is_caught(scene: Scene) -> None:
    with suppress(DBAPIError):
        scene.say("DO 'BEGIN ROLLBACK; END'")


@way(mariadb=Then.ENDED)
def procedure_that_rolls_back_when_it_fails(scene: Scene) -> None:
    scene.say("CALL rolls_back_when_it_fails()")


@way(postgresql=Then.WHOLE, mariadb=Then.ENDED, sqlite=Then.WHOLE)
def create_table(scene: Scene) -> None:
    scene.say(f"CREATE TABLE new_{scene.unique} (id integer)")


@way(mariadb=Then.ENDED)
def create_table_behind_a_comment(scene: Scene) -> None:
    scene.say(f"/* new */ CREATE TABLE new_{scene.unique} (id integer)")


@way(postgresql=Then.WHOLE, mariadb=Then.WHOLE, sqlite=Then.WHOLE)
def create_temporary_table(scene: Scene) -> None:
    scene.say(f"CREATE TEMPORARY TABLE new_{scene.unique} (id integer)")


@way(postgresql=Then.WHOLE, mariadb=Then.ENDED)
def truncate(scene: Scene) -> None:
    scene.say("TRUNCATE TABLE scratch")


# SQLAlchemy's own: the connection, its transaction, a Session on it


@everywhere(Then.ENDED)
def commit_of_the_connection(scene: Scene) -> None:
    scene.connection.commit()


@everywhere(Then.ENDED)
def rollback_of_the_connection(scene: Scene) -> None:
    scene.connection.rollback()


@everywhere(Then.OPEN)
def commit_of_the_connection_that_is_caught(scene: Scene) -> None:
    with suppress(Exception):
        scene.connection.commit()


@everywhere(Then.OPEN)
def rollback_of_the_connection_that_is_caught(scene: Scene) -> None:
    with suppress(Exception):
        scene.connection.rollback()


@everywhere(Then.ENDED)
def close_of_the_connection(scene: Scene) -> None:
    scene.connection.close()


@everywhere(Then.FAILED)
def begin_of_the_connection(scene: Scene) -> None:
    scene.connection.begin()


@everywhere(Then.OPEN)
def begin_of_the_connection_that_is_caught(scene: Scene) -> None:
    with suppress(Exception):
        scene.connection.begin()


@everywhere(Then.UNDONE)
def invalidate(scene: Scene) -> None:
    scene.connection.invalidate()


@everywhere(Then.OPEN)
def detach(scene: Scene) -> None:
    scene.connection.detach()


@everywhere(Then.ENDED)
def commit_of_the_transaction(scene: Scene) -> None:
    transaction = scene.connection.get_transaction()
    assert transaction is not None
    transaction.commit()


@everywhere(Then.ENDED)
def rollback_of_the_transaction(scene: Scene) -> None:
    transaction = scene.connection.get_transaction()
    assert transaction is not None
    transaction.rollback()


@everywhere(Then.WHOLE)
def session_that_commits(scene: Scene) -> None:
    with Session(scene.connection) as session:
        scene.write("session", through=session)
        session.commit()


@everywhere(Then.ENDED)
def session_that_rolls_back(scene: Scene) -> None:
    with Session(scene.connection) as session:
        scene.write("session", through=session)
        session.rollback()


@everywhere(Then.WHOLE)
def session_that_closes(scene: Scene) -> None:
    with Session(scene.connection) as session:
        scene.write("session", through=session)


@everywhere(Then.WHOLE)
def session_with_savepoints_that_commits(scene: Scene) -> None:
    with Session(scene.connection, join_transaction_mode="create_savepoint") as session:
        scene.write("session", through=session)
        session.commit()


@everywhere(Then.WHOLE)
def session_with_savepoints_that_rolls_back(scene: Scene) -> None:
    with Session(scene.connection, join_transaction_mode="create_savepoint") as session:
        scene.write("session", through=session)
        session.rollback()
    scene.call.written.remove("session")


@everywhere(Then.ENDED)
def session_in_full_control_that_commits(scene: Scene) -> None:
    with Session(scene.connection, join_transaction_mode="control_fully") as session:
        scene.write("session", through=session)
        session.commit()


@everywhere(Then.ENDED)
def session_in_full_control_that_rolls_back(scene: Scene) -> None:
    with Session(scene.connection, join_transaction_mode="control_fully") as session:
        scene.write("session", through=session)
        session.rollback()


@everywhere(Then.ENDED)
def session_in_full_control_that_closes(scene: Scene) -> None:
    with Session(scene.connection, join_transaction_mode="control_fully") as session:
        scene.write("session", through=session)


# Savepoints of the handler's own


@everywhere(Then.WHOLE)
def nothing(scene: Scene) -> None:
    """The control: without any way, effects are there exactly once."""


@everywhere(Then.WHOLE)
def nested_that_is_released(scene: Scene) -> None:
    with scene.connection.begin_nested():
        scene.write("nested")


@everywhere(Then.WHOLE)
def nested_that_is_rolled_back(scene: Scene) -> None:
    nested = scene.connection.begin_nested()
    scene.write("nested")
    nested.rollback()
    scene.call.written.remove("nested")


@everywhere(Then.WHOLE)
def nested_a_hundred_deep(scene: Scene) -> None:
    levels = [scene.connection.begin_nested() for _ in range(100)]
    scene.write("deepest")
    for level in reversed(levels):
        level.commit()


@everywhere(Then.WHOLE)
def nested_around_an_error(scene: Scene) -> None:
    with suppress(DBAPIError), scene.connection.begin_nested():
        scene.say("INSERT INTO once VALUES (1)")


@everywhere(Then.WHOLE)
def savepoint_in_plain_sql(scene: Scene) -> None:
    scene.say("SAVEPOINT mine")
    scene.write("mine")
    scene.say("ROLLBACK TO SAVEPOINT mine")
    scene.call.written.remove("mine")
    scene.say("RELEASE SAVEPOINT mine")


# Errors that the handler catches


@way(postgresql=Then.UNDONE, mariadb=Then.WHOLE, sqlite=Then.WHOLE)
def caught_error(scene: Scene) -> None:
    with suppress(DBAPIError):
        scene.say("INSERT INTO once VALUES (1)")


@everywhere(Then.FAILED)
def error_that_is_let_out(scene: Scene) -> None:
    scene.say("INSERT INTO once VALUES (1)")


@way(sqlite=Then.UNDONE)
def insert_or_rollback(scene: Scene) -> None:
    with suppress(DBAPIError):
        scene.say("INSERT OR ROLLBACK INTO once VALUES (1)")


@way(postgresql=Then.UNDONE, mariadb=Then.UNDONE)
def caught_deadlock(scene: Scene) -> None:
    with suppress(DBAPIError):
        deadlock(scene)


@way(postgresql=Then.UNDONE, mariadb=Then.WHOLE)
def caught_lock_timeout(scene: Scene) -> None:
    with suppress(DBAPIError):
        wait_for_a_lock_too_long(scene)


# What hides an end: the connection is closed or breaks, or the database reports an error, after a part was kept


def _kill(scene: Scene) -> None:
    """Have the server end the session under the handler."""
    session = {POSTGRES: "SELECT pg_terminate_backend(pg_backend_pid())", MARIADB: "KILL CONNECTION_ID()"}
    with suppress(Exception):  # whatever a driver says when its connection breaks
        scene.driver.cursor().execute(session[scene.database])


@everywhere(Then.ENDED)
def commit_then_close_of_the_driver(scene: Scene) -> None:
    scene.driver.commit()
    scene.driver.close()


@way(postgresql=Then.ENDED)
def commit_and_close_by_the_drivers_with(scene: Scene) -> None:
    with scene.driver:
        pass


@everywhere(Then.ENDED)
def close_of_the_driver(scene: Scene) -> None:
    scene.driver.close()


@way(postgresql=Then.ENDED, mariadb=Then.ENDED)
def commit_of_the_driver_then_killed(scene: Scene) -> None:
    scene.driver.commit()
    _kill(scene)


@way(mariadb=Then.ENDED)
def procedure_that_commits_then_killed(scene: Scene) -> None:
    scene.say("CALL commits()")
    scene.kill()


@way(postgresql=Then.ENDED)
def commit_in_a_row_of_statements_then_killed(scene: Scene) -> None:
    scene.connection.exec_driver_sql("SELECT 1; COMMIT; BEGIN")
    scene.kill()


@way(mariadb=Then.ENDED)
def commit_release(scene: Scene) -> None:
    scene.driver.cursor().execute("COMMIT RELEASE")


@everywhere(Then.ENDED)
def commit_of_the_driver_then_an_error(scene: Scene) -> None:
    scene.driver.commit()
    scene.call.did = True
    scene.say("SELECT no_such_column FROM effects")


@everywhere(Then.ENDED)
def commit_of_the_driver_then_a_caught_error(scene: Scene) -> None:
    scene.driver.commit()
    with suppress(DBAPIError):
        scene.say("INSERT INTO once VALUES (1)")


@way(postgresql=Then.ENDED, mariadb=Then.ENDED)
def commit_of_the_driver_then_a_deadlock(scene: Scene) -> None:
    scene.driver.commit()
    scene.call.did = True
    deadlock(scene)


@way(postgresql=Then.ENDED, mariadb=Then.ENDED)
def commit_of_the_driver_then_a_caught_deadlock(scene: Scene) -> None:
    scene.driver.commit()
    with suppress(DBAPIError):
        deadlock(scene)


@way(mariadb=Then.ENDED)
def procedure_that_commits_then_a_deadlock(scene: Scene) -> None:
    scene.say("CALL commits()")
    scene.call.did = True
    deadlock(scene)


@way(mariadb=Then.ENDED)
def caught_lock_timeout_then_commit_of_the_driver(scene: Scene) -> None:
    with suppress(DBAPIError):
        wait_for_a_lock_too_long(scene)
    scene.driver.commit()


@way(mariadb=Then.ENDED)
def caught_lock_timeout_then_a_procedure_that_commits(scene: Scene) -> None:
    with suppress(DBAPIError):
        wait_for_a_lock_too_long(scene)
    scene.say("CALL commits()")


@way(mariadb=Then.ENDED)
def caught_deadlock_then_a_write_and_commit_of_the_driver(scene: Scene) -> None:
    with suppress(DBAPIError):
        deadlock(scene)
    values = f"'{scene.item}', {scene.call.number}, 'driver'"
    scene.driver.cursor().execute(f"INSERT INTO effects VALUES ({values})")
    scene.driver.commit()


@way(sqlite=Then.ENDED)
def commit_and_begin_of_the_driver_then_insert_or_rollback(scene: Scene) -> None:
    scene.driver.commit()
    scene.driver.execute("BEGIN IMMEDIATE")
    with suppress(DBAPIError):
        scene.say("INSERT OR ROLLBACK INTO once VALUES (1)")


@everywhere(Then.ENDED)
def commit_by_scalar(scene: Scene) -> None:
    scene.connection.scalar(text("COMMIT"))


# What breaks without any doing of the handler's: nothing was kept, and it may be repeated


@way(postgresql=Then.BROKEN, mariadb=Then.BROKEN)
def killed(scene: Scene) -> None:
    scene.kill()


@way(postgresql=Then.WHOLE, mariadb=Then.WHOLE, sqlite=Then.WHOLE)
def write_of_the_driver(scene: Scene) -> None:
    scene.driver.cursor().execute("INSERT INTO scratch VALUES (1)")
