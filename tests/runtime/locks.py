"""Real deadlocks and real lock time-outs, made with a second connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tests.components.processes import wait_until
from tests.runtime.scenes import Scene

CHANGE = text("UPDATE accounts SET amount = amount + 1 WHERE id = :id")
_OPEN = "INSERT INTO accounts VALUES (:id, 0)"
_WAITS = text("SELECT count(*) FROM pg_locks WHERE pid = :pid AND NOT granted")
_DEADLOCK = ("40P01", 1213)
_TIMED_OUT = ("55P03", 1205)


def deadlock(scene: Scene) -> None:
    """Have the database choose this transaction for the victim.

    Raises:
        DBAPIError: the deadlock.
    """
    ours, theirs = _accounts(scene)
    scene.connection.execute(CHANGE, {"id": ours})
    with _other(scene, theirs, ours):
        if scene.connection.dialect.name == "postgresql":
            scene.say("SET LOCAL deadlock_timeout = '1ms'")  # whoever looks first is the victim
        _failing(scene, "UPDATE accounts SET amount = amount + 1 WHERE id = :id", theirs, _DEADLOCK)


def wait_for_a_lock_too_long(scene: Scene) -> None:
    """Wait for a row that another transaction has changed, for a shorter time than it stays open.

    Raises:
        DBAPIError: the time-out.
    """
    _, theirs = _accounts(scene)
    with scene.apart.connect() as other, other.begin() as transaction:
        other.execute(CHANGE, {"id": theirs})
        try:
            if scene.connection.dialect.name == "postgresql":
                scene.say("SET LOCAL lock_timeout = '1ms'")
                _failing(scene, "UPDATE accounts SET amount = 9 WHERE id = :id", theirs, _TIMED_OUT)
            else:
                _failing(scene, "SELECT id FROM accounts WHERE id = :id FOR UPDATE NOWAIT", theirs, _TIMED_OUT)
        finally:
            transaction.rollback()


def _accounts(scene: Scene) -> tuple[str, str]:
    ours, theirs = f"{scene.unique}-ours", f"{scene.unique}-theirs"
    scene.elsewhere(_OPEN, [{"id": ours}, {"id": theirs}])
    return ours, theirs


def _failing(scene: Scene, sql: str, account: str, codes: tuple[str, int]) -> None:
    with pytest.raises(DBAPIError) as caught:
        scene.connection.execute(text(sql), {"id": account})
    found = {getattr(caught.value.orig, "sqlstate", None), *getattr(caught.value.orig, "args", ())}
    assert found & set(codes), caught.value
    raise caught.value


@contextmanager
def _other(scene: Scene, first: str, then: str) -> Iterator[None]:
    """Run a transaction beside the block that changes one account and then another, and is undone in the end."""
    with scene.apart.connect() as connection, connection.begin() as transaction:
        if connection.dialect.name != "postgresql":  # the lighter transaction is the victim
            rows = text("INSERT INTO accounts SELECT concat(:id, seq), 0 FROM seq_1_to_200")
            connection.execute(rows, {"id": scene.unique})
        connection.execute(CHANGE, {"id": first})
        thread = threading.Thread(target=_change, args=(connection, then))
        pid = _pid(connection)
        thread.start()
        try:
            if pid:
                wait_until(lambda: _is_waiting(scene, pid), "the other transaction to wait")
            yield
        finally:
            thread.join()
            transaction.rollback()


def _change(connection: Connection, account: str) -> None:
    with suppress(DBAPIError):  # it waited in vain: the test says why
        connection.execute(CHANGE, {"id": account})


def _pid(connection: Connection) -> int:
    if connection.dialect.name != "postgresql":
        return 0
    connection.execute(text("SET LOCAL lock_timeout = '20s'"))
    return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def _is_waiting(scene: Scene, pid: int) -> bool:
    with scene.apart.connect() as third:
        return bool(third.execute(_WAITS, {"pid": pid}).scalar_one())
