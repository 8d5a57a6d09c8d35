"""An application with an outbox under test, and what a test wants to know about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import Holdfast
from holdfast.database.pools import EngineProvider
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message, NewMessage
from holdfast.outbox.store import Place

EFFECTS = "CREATE TABLE effects (message_id varchar(200) NOT NULL, amount integer NOT NULL)"


@dataclass
class Shop:
    """An application, its database, and the effects its processors have."""

    url: str
    provider: EngineProvider = field(default_factory=EngineProvider)
    app: Holdfast = field(init=False)

    def __post_init__(self) -> None:
        self.app = Holdfast(self.url, engine_provider=self.provider, max_connections=20)  # tests are its writers, too

    def another(self) -> Shop:
        """Return the same application in another process, as it were: nothing but the database is shared."""
        return Shop(self.url, EngineProvider())

    def append(self, *amounts: int, kind: str = "Paid", key: str | None = None) -> list[str]:
        """Append one message for each amount in one transaction; return their ids."""
        with self.app.database.begin() as connection:
            return [
                self.app.outbox.append(connection, kind, {"amount": amount}, key=key).message_id for amount in amounts
            ]

    def append_each(self, *amounts: int) -> None:
        for amount in amounts:
            self.append(amount)

    def append_many(self, count: int) -> None:
        with self.app.database.begin() as connection:
            messages = [NewMessage(type="Paid", data={"amount": number}) for number in range(count)]
            self.app.outbox.append_many(connection, messages)

    def number(self) -> None:
        """Let what is committed be read: on MariaDB the sequencer has to number it first."""
        if self.app.database.dialect.name in ("mysql", "mariadb"):
            self.app.processors._number_everything()

    def execute(self, sql: str, **values: object) -> list[dict[str, Any]]:
        with self.app.database.begin() as connection:
            answer = connection.execute(text(sql), values)
            return [dict(row) for row in answer.mappings()] if answer.returns_rows else []

    def effects(self) -> list[int]:
        """Return the amounts of all effects, in the order they were written."""
        order = "ctid" if self.app.database.dialect.name == "postgresql" else "1"
        rows = self.execute(f"SELECT amount FROM effects ORDER BY {order}")
        return [row["amount"] for row in rows]

    def place(self, processor_id: str = "totals", version: int = 1, partition: int = 0) -> Place:
        [place] = [
            item for item in self.app.processors.checkpoints.of(processor_id, version) if item.id.partition == partition
        ]
        return place

    def run(self, processor_id: str = "totals", version: int | None = None) -> int:
        return self.app.processors.run_until_caught_up(processor_id, version=version)


def write_effects(messages: Sequence[Message], context: ProcessorContext) -> None:
    """Write one effect for each message through the transaction of its delivery."""
    for message in messages:
        write_effect(context.transaction, message)


def write_effect(connection: Connection, message: Message) -> None:
    values = {"id": message.message_id, "amount": message.data["amount"]}
    connection.execute(text("INSERT INTO effects VALUES (:id, :amount)"), values)


@contextmanager
def open_shop(url: str) -> Iterator[Shop]:
    """Yield an application on an empty database."""
    shop = Shop(url)
    try:
        shop.app.migrate()
        shop.execute(EFFECTS)
        yield shop
    finally:
        shop.provider.dispose_all()
