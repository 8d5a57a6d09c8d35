"""What a handler under test does: write an effect, do something to its transaction, write another, return or raise.

Every call is noted here, in this process, beside what the database keeps of it. The account compares the two.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine

TABLES = (
    "CREATE TABLE effects (item varchar(120) NOT NULL, call_number integer NOT NULL, step varchar(20) NOT NULL)",
    "CREATE TABLE once (id integer PRIMARY KEY)",
    "INSERT INTO once VALUES (1)",
    "CREATE TABLE scratch (id integer)",
    "CREATE TABLE accounts (id varchar(200) PRIMARY KEY, amount integer NOT NULL)",
)
EFFECT = text("INSERT INTO effects VALUES (:item, :call_number, :step)")


class Deliberate(Exception):  # noqa: N818 - it is no fault
    """What a handler raises because its cell says so."""

    def __init__(self) -> None:
        super().__init__("raised on purpose")


class Ending(StrEnum):
    """How a handler ends after everything else."""

    RETURNS = "returns"
    RAISES = "raises"


@dataclass
class Call:
    """One call of a handler, as far as it came."""

    number: int
    written: list[str] = field(default_factory=list)
    did: bool = False
    returned: bool = False
    error: str | None = None


@dataclass
class Scene:
    """One call of a handler, as what it does to its transaction sees it.

    ``lend`` returns ``context.transaction``; ``apart`` opens connections that Holdfast knows nothing of.
    """

    item: str
    call: Call
    lend: Callable[[], Any]
    apart: Engine
    unique: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def connection(self) -> Connection:
        lent: Connection = self.lend()
        return lent

    @property
    def driver(self) -> Any:
        """Return the driver's own connection."""
        return self.connection.connection.driver_connection

    @property
    def values(self) -> dict[str, object]:
        return {"item": self.item, "call_number": self.call.number}

    def write(self, step: str, *, through: Any = None) -> None:
        """Write an effect; through something else than the connection, such as a Session, if that is given."""
        (through or self.connection).execute(EFFECT, {**self.values, "step": step})
        self.call.written.append(step)

    def say(self, sql: str, **values: object) -> None:
        self.connection.execute(text(sql), values)

    @property
    def database(self) -> str:
        name = self.apart.dialect.name
        return "mariadb" if name == "mysql" else name

    def kill(self) -> None:
        """Have the server end the session of the transaction, from elsewhere."""
        mine = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT connection_id()"}[self.database]
        session = self.connection.execute(text(mine)).scalar_one()
        killing = {"postgresql": f"SELECT pg_terminate_backend({session}, 10000)", "mariadb": f"KILL {session}"}
        with self.apart.connect() as connection:
            connection.exec_driver_sql(killing[self.database])

    def elsewhere(self, sql: str, rows: Sequence[dict[str, object]]) -> None:
        """Do and commit something on a connection of its own."""
        with self.apart.begin() as connection:
            connection.execute(text(sql), rows)


class AsyncScene(Scene):
    """One call of an ``async def`` handler."""

    @property
    def transaction(self) -> Any:
        return self.lend()

    async def write_async(self, step: str) -> None:
        await self.transaction.execute(EFFECT, {**self.values, "step": step})
        self.call.written.append(step)
