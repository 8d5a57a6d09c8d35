"""``hf.outbox``: appending messages in the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.clock import new_id
from ..core.errors import ConfigurationError, MessageError
from ..database.errors import Kind, kind_of, reason
from .caller_connections import Caller, caller_of
from .message import MAX_MESSAGE_BYTES, Appended, NewMessage, columns_of
from .statements import named

_MOST_AT_ONCE = 1000


class Outbox:
    """Takes messages. They commit with the caller's transaction or not at all [OUTBOX-1].

    On PostgreSQL an append wakes processors by NOTIFY when it commits. PostgreSQL refuses to PREPARE a transaction that
    has done so: two-phase transactions of SQLAlchemy and psycopg are noticed and wake nobody; for those that are
    prepared by SQL, set ``wakes_processors`` to False.
    """

    def __init__(self, dialect: Callable[[], str]) -> None:
        self._dialect = dialect
        self.wakes_processors = True
        self.max_message_bytes = MAX_MESSAGE_BYTES

    def append(
        self,
        connection: Any,
        type: str,
        data: Any,
        *,
        message_id: str | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Appended:
        """Append one message in the transaction that is open on ``connection``.

        Args:
            connection: a SQLAlchemy ``Connection`` or ORM ``Session``, a psycopg or a sqlite3 connection.
            type: what happened, such as ``OrderPlaced``.
            data: anything that is JSON.
            message_id: made up when left out. An id that is there already adds nothing, and ``is_new`` says so.
            key: messages with the same key go to the same partition of a processor, in order.
            correlation_id: what the message belongs to; its own id when left out.
            causation_id: the message or request that led to this one.
            headers: what else consumers should know.

        Raises:
            MessageError: the message cannot be stored, or no transaction is open; nothing was appended.
        """
        message = NewMessage(
            type=type,
            data=data,
            message_id=message_id,
            key=key,
            correlation_id=correlation_id,
            causation_id=causation_id,
            headers=headers,
        )
        [appended] = self.append_many(connection, [message])
        return appended

    def append_many(self, connection: Any, messages: Iterable[NewMessage]) -> list[Appended]:
        """Append messages in this order, in the transaction that is open on ``connection``.

        All are checked before the first is sent.

        Raises:
            MessageError: a message cannot be stored, or no transaction is open; nothing was appended.
        """
        if isinstance(messages, NewMessage):
            raise MessageError("append_many takes several messages: pass a list of them. Nothing was appended.")
        rows = [columns_of(_checked(message), self.max_message_bytes) for message in messages]
        caller = caller_of(connection)
        if caller.dialect != self._dialect():
            raise ConfigurationError(
                f"The outbox is in {self._dialect()}, and the connection leads to {caller.dialect}. Messages commit "
                "with your data only in the same database: pass a connection to that one."
            )
        found: list[Appended] = []
        for start in range(0, len(rows), _MOST_AT_ONCE):
            found += _append(caller, rows[start : start + _MOST_AT_ONCE], self.wakes_processors)
        return found


def _append(caller: Caller, rows: Sequence[dict[str, object]], wakes: bool) -> list[Appended]:
    with _naming_missing_tables():
        added = _HOW[caller.dialect](caller, rows, wakes and caller.may_notify)
    found = []
    for row in rows:
        message_id = str(row["message_id"])
        found.append(Appended(message_id, message_id in added))
        added.discard(message_id)  # an id given twice was added once
    return found


@contextmanager
def _naming_missing_tables() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if kind_of(error) is Kind.MISSING_TABLE and "holdfast_outbox" in reason(error):
            raise ConfigurationError(
                "There is no outbox in the database of this connection. Create it with 'holdfast migrate', or pass a "
                "connection to the application's own database."
            ) from error
        raise


def _append_postgresql(caller: Caller, rows: Sequence[dict[str, object]], wakes: bool) -> set[str]:
    if len(rows) == 1:
        values = {**rows[0], "wakes": wakes}
        return {row[0] for row in caller.run(named.statement("postgresql", "append_one"), values)}
    columns: dict[str, object] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["wakes"] = wakes
    return {row[0] for row in caller.run(named.statement("postgresql", "append"), columns)}


def _append_sqlite(caller: Caller, rows: Sequence[dict[str, object]], wakes: bool) -> set[str]:
    batch = json.dumps(rows, ensure_ascii=False)
    return {row[0] for row in caller.run(named.statement("sqlite", "append"), {"batch": batch})}


def _append_mysql(caller: Caller, rows: Sequence[dict[str, object]], wakes: bool) -> set[str]:
    group = {"transaction_group": caller.transaction_group(), "append_id": new_id(16)}
    caller.run_many(named.statement("mysql", "append"), [{**row, **group} for row in rows])
    return {row[0] for row in caller.run(named.statement("mysql", "appended"), group)}


_HOW = {"postgresql": _append_postgresql, "mysql": _append_mysql, "sqlite": _append_sqlite}


def _checked(message: object) -> NewMessage:
    if not isinstance(message, NewMessage):
        raise MessageError(
            f"append_many takes NewMessage(type=…, data=…) objects, not {type(message).__name__}. Nothing was appended."
        )
    return message
