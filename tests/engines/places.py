"""Applications with engines, in every place that their queues and tables can be, with time that the test steps.

Each is a real ``Holdfast`` application. Leases and the registry are always in the database; queue and tables are in the
same database, or in a storage account.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from azure.core.exceptions import AzureError
from azure.data.tables import TableServiceClient
from azure.storage.queue import QueueClient, QueueServiceClient
from sqlalchemy import inspect, select, text

from holdfast import EngineProvider, Holdfast
from holdfast.core.config import DbConfig
from holdfast.core.errors import Unavailable
from holdfast.core.retry import RetryPolicy
from holdfast.database.pools import always_autocommit
from holdfast.engines.azure import AzureStorage
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.queues.embedded import DatabaseQueues
from holdfast.engines.queues.protocol import Received
from holdfast.engines.queues.storage import PoisonQueue, StorageQueue
from holdfast.engines.registry import EngineTablesConfig
from holdfast.engines.runner import Outcome
from holdfast.engines.store import TableRecords
from holdfast.jobs.listing import jobs_table
from holdfast.jobs.store import job_store
from holdfast.jobs.stores.base import SqlJobStore
from holdfast.lease.documents import DocumentStore, ETag, Snapshot, Written
from holdfast.lease.stores.sql import SqlDocumentStore
from holdfast.records.dead_letters import DeadLetter, LetterStatus
from holdfast.records.history import HistoryEntry
from tests.clocks import SteppedTimeStore
from tests.components.processes import wait_until
from tests.engines.driving import Driven, Killed, queue_of
from tests.engines.queues import free_what_the_dead_held
from tests.engines.registries import HandClock

ENGINE = "hmac"
VISIBLE_AGAIN_SECONDS = 61.0  # longer than any lease and lock of these tests
AT_ONCE = RetryPolicy(base_delay_seconds=0.001, max_delay_seconds=0.001)


@dataclass(frozen=True)
class OneStore:
    """Jobs whose store is there already."""

    store: SqlJobStore


class MortalStore:
    """The documents as one process sees them: a process that is dead writes nothing more, in no ``finally`` either."""

    def __init__(self, inner: DocumentStore) -> None:
        self._inner = inner
        self.is_dead = False

    def _alive(self) -> DocumentStore:
        if self.is_dead:
            raise Unavailable("This process is dead.")
        return self._inner

    @property
    def skew_margin_seconds(self) -> float | None:
        return self._inner.skew_margin_seconds

    def read(self, name: str) -> Snapshot | None:
        return self._alive().read(name)

    def create(self, name: str, content: bytes) -> Written:
        return self._alive().create(name, content)

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        return self._alive().replace(name, content, if_match)

    def delete(self, name: str, if_match: ETag) -> None:
        self._alive().delete(name, if_match)

    def list(self, prefix: str) -> Iterator[str]:
        return self._alive().list(prefix)


class SkippingQueue(StorageQueue):
    """Azure's queue, and the last receipt of each message that is invisible: with it, its time can be let pass."""

    def __init__(self, client: QueueClient, receipts: dict[str, str]) -> None:
        super().__init__(client)
        self._receipts = receipts

    def receive(self, most: int, visibility_seconds: float) -> list[Received]:
        found = [*super().receive(most, visibility_seconds)]
        self._receipts.update({message.id: message.receipt for message in found})
        return found

    def _update(self, message: Received, visibility_seconds: float, content: str | None = None) -> Received:
        updated = super()._update(message, visibility_seconds, content)
        self._receipts[updated.id] = updated.receipt
        return updated

    def let_time_pass(self) -> None:
        """Make every message visible."""
        while self._receipts:
            message_id, receipt = self._receipts.popitem()
            with contextlib.suppress(AzureError):  # it is gone, or visible already and received by another
                self._client.update_message(message_id, receipt, visibility_timeout=0)


class SkippingPoison(SkippingQueue, PoisonQueue):
    """The same of the queue that a host moves messages to."""


class SkippingAccount(AzureStorage):
    """A storage account whose queues' time the test steps."""

    def __init__(self, connection_string: str) -> None:
        super().__init__(
            QueueServiceClient.from_connection_string(connection_string),
            TableServiceClient.from_connection_string(connection_string),
        )
        self._receipts: dict[str, dict[str, str]] = {}

    def queue(self, name: str, visibility_seconds: float) -> SkippingQueue:
        return SkippingQueue(self._queues.get_queue_client(name), self._receipts.setdefault(name, {}))

    def poison(self, name: str) -> SkippingPoison:
        wanted = f"{name}-poison"
        queue = SkippingPoison(self._queues.get_queue_client(wanted), self._receipts.setdefault(wanted, {}))
        queue._max_dequeue_count = self._max_dequeue_count or 0
        return queue

    def let_time_pass(self) -> None:
        for name in list(self._receipts):
            self.queue(name, 0.0).let_time_pass()


@dataclass
class Place:
    """Where the engines of a test are. ``connection_string`` is None when they are all in the database."""

    kind: str
    url: str
    connection_string: str | None = None
    provider: EngineProvider = field(default_factory=EngineProvider)
    clock: HandClock = field(default_factory=HandClock)
    ahead_seconds: float = 0.0
    app_name: str = field(default_factory=lambda: f"app-{uuid.uuid4().hex[:8]}")
    account: SkippingAccount | None = None
    queue_name: str = "hmac-rotation-queue"
    instance_id: str | None = None
    tables: EngineTablesConfig | None = None

    def __post_init__(self) -> None:
        if self.connection_string is not None:
            self.account = SkippingAccount(self.connection_string)
            self.queue_name = f"hmac-{uuid.uuid4().hex}"

    @property
    def is_azure(self) -> bool:
        return self.account is not None

    def documents(self) -> DocumentStore:
        return SqlDocumentStore(self.provider.get_engine(always_autocommit(DbConfig(connection_url=self.url))))

    def application(self, state: DocumentStore | None = None) -> Holdfast:
        """Return the application as one more process of it would have it."""
        engine = self.provider.get_engine(DbConfig(connection_url=self.url))
        store = job_store(engine, ahead_seconds=lambda: self.ahead_seconds)
        return Holdfast(
            self.url,
            app_name=self.app_name,
            instance_id=self.instance_id,
            engine_provider=self.provider,
            state=SteppedTimeStore(state or self.documents(), self.clock),
            engine_queues=self.account or DatabaseQueues(OneStore(store), self.app_name),
            engine_tables=self.account,
            clock=self.clock,
        )

    def name_tables(self) -> EngineTablesConfig:
        """Give the application tables of its own, or those it shares with another, by its registry."""
        suffix = uuid.uuid4().hex
        tables = self.tables or EngineTablesConfig(
            dlq_table_name=f"engineDlq{suffix}", history_table_name=f"engineHistory{suffix}"
        )
        self.application().registry.init(tables)
        return tables

    def let_time_pass(self, seconds: float = VISIBLE_AGAIN_SECONDS) -> None:
        """Let so much time pass for leases, locks and messages of the embedded queue; Azure's all become visible."""
        self.clock.advance(seconds)
        self.ahead_seconds += seconds
        if self.account is not None:
            self.account.let_time_pass()

    def empty(self) -> None:
        """Leave nothing for the next test."""
        with self.provider.get_engine(DbConfig(connection_url=self.url)).begin() as connection:
            for table in inspect(connection).get_table_names():
                if table.startswith("holdfast_") and table != "holdfast_migrations":
                    connection.execute(text(f"DELETE FROM {table}"))
        if self.account is not None:
            self.account.close()


class Bench:
    """Engine ``hmac`` with two operations, and everything that a test wants to know about it."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.place = place
        self.options = {"max_retry_attempts": 3, "retry_policy": AT_ONCE, "conflict_seconds": 0.0, **options}
        self.is_apart = False  # whether records are written as if they were not in the queue's database
        self.executions: list[EngineMessage] = []
        self.contexts: list[EngineContext] = []
        self.fails: Callable[[EngineContext], bool] = lambda context: False
        self.work: Callable[[EngineContext, EngineMessage], object] = lambda context, message: {
            "rotated": context.attempt
        }
        if place.is_azure:
            self.tables = place.name_tables()
        self.hf = self.process()
        self.hf.migrate()

    def process(self, state: DocumentStore | None = None, **options: Any) -> Holdfast:
        """Return the application as one more process would have it."""
        hf = self.place.application(state)
        for operation in ("rotate", "notify"):
            settings = {"queue": self.place.queue_name, "operation": operation, **self.options, **options}
            hf.engine(ENGINE, **settings)(self.handle)
        return hf

    def handle(self, context: EngineContext, message: EngineMessage) -> object:
        self.executions.append(message)
        self.contexts.append(context)
        if self.fails(context):
            raise ValueError(f"no key at attempt {context.attempt}")
        return self.work(context, message)

    # Sending and receiving

    @property
    def queue(self) -> Any:
        return queue_of(self.hf, ENGINE)

    def send(self, message_id: str = "m-1", correlation_id: str = "c-1", **fields: Any) -> None:
        given = {"messageId": message_id, "correlationId": correlation_id, "payload": {"key": 7}, **fields}
        self.queue.send(json.dumps(given), message_id=message_id)

    def receive(self, queue: Any = None) -> Received | None:
        """Return a message that is visible now, or becomes visible with the time that passes."""
        queue = queue or self.queue
        for _ in range(3):  # the second lets what a dead worker held be freed, the third its delay pass
            free_what_the_dead_held(queue)
            found: list[Received] = queue.receive(1, 30)
            if found:
                return found[0]
            if not self._has_messages(queue):
                return None
            self.place.let_time_pass()
        return None

    def _has_messages(self, queue: Any) -> bool:
        """Return whether the queue has any, visible or not."""
        if isinstance(queue, StorageQueue):
            return bool(queue._client.get_queue_properties().approximate_message_count)
        wanted = select(jobs_table.c.id).where(jobs_table.c.topic == queue.topic).limit(1)
        with self.hf.database.connect() as connection:
            return connection.execute(wanted).first() is not None

    def next(self, queue: Any = None) -> Received:
        message = wait_until(lambda: self.receive(queue), "the message")
        assert message is not None
        return message

    def lose_workers(self, charged: int) -> Received:
        """Let workers receive the next message and never be heard of again, until so many are charged to it.

        In a database the first that is lost only makes it a suspect.
        """
        for _ in range(charged if self.place.is_azure else charged + 1):
            lost = self.next()
        return lost

    def deliver(self, reached: Callable[[str], None] | None = None, hf: Holdfast | None = None) -> Outcome:
        """Take the next message through its steps."""
        driven = self.flow(None, reached, hf)
        return driven.handle(self.next(driven.queue))

    def flow(
        self,
        queue: Any = None,
        reached: Callable[[str], None] | None = None,
        hf: Holdfast | None = None,
    ) -> Driven:
        driven = Driven(hf or self.hf, ENGINE, queue, is_apart=self.is_apart)
        if reached is not None:
            driven.reach(reached)
        return driven

    def die_at(self, boundary: str, times: int = 1) -> bool:
        """Let a process of its own take the next message and die at a boundary; return whether it came so far."""
        state = MortalStore(self.place.documents())
        seen = [0]

        def reached(told: str) -> None:
            seen[0] += told == boundary
            if told == boundary and seen[0] == times:
                state.is_dead = True
                raise Killed

        try:
            self.deliver(reached, self.process(state))
        except Killed:
            return True
        return False

    def to_the_end(self, most: int = 40) -> list[Outcome]:
        """Let a healthy worker take deliveries until the queue is empty; return what became of them."""
        outcomes: list[Outcome] = []
        driven = self.flow()
        while (message := self.receive(driven.queue)) is not None:
            outcomes.append(driven.handle(message))
            assert len(outcomes) <= most, f"it does not end: {outcomes}"
        return outcomes

    # What came of it

    @property
    def records(self) -> TableRecords:
        return self.hf.engines._records()

    @property
    def history(self) -> list[HistoryEntry]:
        return self.records.history.of_correlation(ENGINE, "c-1")

    @property
    def letters(self) -> list[DeadLetter]:
        return list(self.records.letters.page().items)

    @property
    def is_empty(self) -> bool:
        """Return whether no message is left, visible or not."""
        return self.receive() is None

    def ends(self, correlation_id: str = "c-1") -> list[str]:
        """Return how the business has ended: exactly one way, if all is well."""
        found = self.records.history.of_correlation(ENGINE, correlation_id)
        pending = [
            letter
            for letter in self.letters
            if letter.correlation_id == correlation_id and letter.status is LetterStatus.PENDING
        ]
        return ["Succeeded" for entry in found if str(entry.status) == "Succeeded"] + ["dead" for _ in pending]

    @property
    def statuses(self) -> list[str]:
        return [str(entry.status) for entry in self.history]


def body_of(message: Received) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(message.body)
    return found
