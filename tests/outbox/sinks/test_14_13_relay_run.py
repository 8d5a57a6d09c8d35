"""14.13, the relay run: a receiver that fails one message in ten in every way there is.

400, 429 with ``Retry-After``, 500, a drip of headers, a connection that ends, a redirect; some for ever, some once.
Every other message is answered with success once and never sent again, the order of each key is kept, and of each
message that fails it is known how many requests it may cost. The short size runs with every test, the full one with
``make prove``.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from holdfast.core.retry import RetryPolicy
from holdfast.outbox.message import NewMessage
from holdfast.outbox.sinks import WebhookSink
from holdfast.records.dead_letters import LetterFilter, LetterStatus
from holdfast.records.tables import SqlLetterTable
from tests.components.processes import wait_until
from tests.outbox.shops import Shop
from tests.outbox.sinks.messages import SOURCE
from tests.outbox.sinks.receiver import Answer, Receiver, Request, receiving
from tests.outbox.test_instances import working

TIMEOUT_SECONDS = 2.0
TRIES = 3
FOR_EVER = 10_000
BUSY = Answer(429, {"retry-after": "1"})
# How a message fails, and how often before it is taken.
SHORT = [(Answer(400), FOR_EVER), (BUSY, 1), (Answer(500), 2), (Answer(drips=True), 1), (Answer(breaks=True), 2)]
SHORT += [(Answer(307, {"location": "/elsewhere"}), FOR_EVER), (Answer(500), FOR_EVER), (Answer(breaks=True), FOR_EVER)]
FULL = [*SHORT, (BUSY, FOR_EVER), (Answer(drips=True), FOR_EVER), (Answer(307), 1), (Answer(400), 1), (Answer(503), 1)]


@dataclass
class Partner:
    """A receiver that fails one message in ten, as a list says, until it is mended."""

    ways: list[tuple[Answer, int]]
    fails: dict[str, tuple[Answer, int]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    taken: list[str] = field(default_factory=list)
    is_mended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def name(self, number: int) -> str:
        """Return the id of a message, and decide whether it fails."""
        name = f"m{number}"
        if number % 10 == 7:
            self.fails[name] = self.ways[number // 10 % len(self.ways)]
        return name

    def answer(self, request: Request) -> Answer:
        name = request.headers["webhook-id"]
        with self.lock:
            self.requests[name] += 1
            way, times = self.fails.get(name, (Answer(), 0))
            if self.requests[name] <= times and not self.is_mended:
                return way
            self.taken.append(name)
            return Answer()

    def is_refused(self, name: str) -> bool:
        """Return whether a message fails for as long as it is tried: once for what is permanent."""
        way, times = self.fails.get(name, (Answer(), 0))
        return times >= self.tries_of(way)

    def requests_of(self, name: str) -> int:
        """Return how many requests a message costs until it is taken or given up."""
        way, times = self.fails.get(name, (Answer(), 0))
        return min(times, self.tries_of(way)) if self.is_refused(name) else times + 1

    @staticmethod
    def tries_of(way: Answer) -> int:
        return 1 if 300 <= way.status < 500 and way.status != 429 else TRIES


@dataclass
class Run:
    """A shop whose messages go to a partner."""

    shop: Shop
    partner: Partner
    receiver: Receiver
    count: int
    parks: bool
    of_key: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def append_all(self) -> None:
        messages = []
        for number in range(self.count):
            name, key = self.partner.name(number), f"k{number % (self.count // 7)}" if number % 4 else None
            self.of_key[key or name].append(name)
            messages.append(NewMessage(type="Paid", data={"amount": number}, message_id=name, key=key))
        for start in range(0, self.count, 50):
            with self.shop.app.database.begin() as connection:
                self.shop.app.outbox.append_many(connection, messages[start : start + 50])

    def relay(self, partitions: int) -> WebhookSink:
        sink = WebhookSink(self.receiver.url, source=SOURCE, timeout_seconds=TIMEOUT_SECONDS)
        policy = RetryPolicy(max_retries=TRIES - 1, base_delay_seconds=0.01, max_delay_seconds=0.05)
        on_error = "park" if self.parks else "dead_letter"
        self.shop.app.relay(
            "orders", sink, on_error=on_error, retry_policy=policy, batch_size=16, partitions=partitions
        )
        return sink

    def expected(self) -> tuple[list[str], list[str]]:
        """Return what is sent and what waits unsent."""
        sent: list[str] = []
        waiting: list[str] = []
        for names in self.of_key.values():
            refused = [number for number, name in enumerate(names) if self.partner.is_refused(name)]
            end = refused[0] + 1 if refused and self.parks else len(names)
            sent += names[:end]
            waiting += names[end:]
        return sent, waiting

    def pending(self) -> list[str]:
        wanted, letters = LetterFilter(engine="processor:orders", status=LetterStatus.PENDING), []
        table, after = SqlLetterTable(self.shop.app.database), None
        while True:
            page = table.page(wanted, 100, after)
            letters += [str(letter.item_id) for letter in page.items]
            after = page.continuation_token
            if after is None:
                return letters

    def check(self) -> None:
        sent, waiting = self.expected()
        refused = [name for name in sent if self.partner.is_refused(name)]
        assert self.partner.requests == {name: self.partner.requests_of(name) for name in sent}
        assert Counter(self.partner.taken) == Counter(set(sent) - set(refused))
        assert sorted(self.pending()) == sorted([*refused, *waiting])
        self.check_order()
        requests = sum(self.partner.requests.values())
        print(f"\n{self.count} messages, {requests} requests: {len(self.partner.taken)} taken, ", end="")
        print(f"{len(refused)} given up, {len(waiting)} wait behind them")

    def check_order(self) -> None:
        places = {name: place for place, name in enumerate(self.partner.taken)}
        for names in self.of_key.values():
            taken = [places[name] for name in names if name in places]
            assert taken == sorted(taken), f"out of order: {names}"

    def check_mended(self) -> None:
        """Everything arrives once the partner is mended and the letters are retried; parked keys in order."""
        assert self.pending() == []
        assert Counter(self.partner.taken) == Counter(name for names in self.of_key.values() for name in names)
        if self.parks:
            self.check_order()

    def retry_all(self) -> None:
        self.partner.is_mended = True
        list(self.shop.app.redrive.retry_all(LetterFilter(engine="processor:orders"), "anne"))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def test_14_13_relay_run(sqlite_shop: Shop, receiver: Receiver) -> None:
    run = Run(sqlite_shop, Partner(SHORT), receiver, count=80, parks=True)
    receiver.answer = run.partner.answer
    run.append_all()
    sink = run.relay(partitions=2)
    sqlite_shop.run("orders")
    run.check()
    run.retry_all()
    sqlite_shop.run("orders")
    run.check_mended()
    sink.close()


@pytest.mark.prove
@pytest.mark.parametrize("on_error", ["park", "dead_letter"])
def test_14_13_relay_run_in_full(shop: Shop, receiver: Receiver, on_error: str) -> None:
    run = Run(shop, Partner(FULL), receiver, count=2000, parks=on_error == "park")
    receiver.answer = run.partner.answer
    run.append_all()
    sink = run.relay(partitions=8)
    with working(shop):
        shop.app.processors.when_caught_up("orders", timeout_seconds=3600)
        run.check()
        run.retry_all()
        wait_until(lambda: len(run.partner.taken) >= run.count and not run.pending(), "what was put back", 3600)
    run.check_mended()
    sink.close()
