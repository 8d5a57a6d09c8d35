"""[OUTBOX-4] ``order="position"`` keeps the order in which a key's writers held its lock; the other order does not.

The writers write elsewhere before they lock the key, so that they have their transaction ids in an order that says
nothing about the key. Both orders are delivered by two instances while they write; PostgreSQL only, because elsewhere
there is one order.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from tests.outbox.faults.account import Ends, falls
from tests.outbox.faults.app import BY_POSITION, BY_TRANSACTION
from tests.outbox.faults.conftest import Scene

pytestmark = pytest.mark.component("postgres18")

KEYS = ("amber", "birch", "cedar")
WRITERS = 6
CHANGES_EACH = 30
_ELSEWHERE = text("INSERT INTO elsewhere (moment) VALUES (clock_timestamp())")
_CHANGE = text("UPDATE keys SET n = n + 1 WHERE name = :key RETURNING n")
_ORDER = text("INSERT INTO orders (message_id) VALUES (:message_id)")


class KeyWriters:
    """Writers of a few keys, who count the changes of each."""

    def __init__(self, scene: Scene) -> None:
        self._app = scene.shop.app
        scene.shop.execute("CREATE TABLE elsewhere (moment timestamptz NOT NULL)")
        for key in KEYS:
            scene.shop.execute("INSERT INTO keys VALUES (:key, 0)", key=key)

    def change(self, connection: Connection, key: str) -> None:
        """Lock a key, count its change, and append what it is now."""
        n = connection.execute(_CHANGE, {"key": key}).scalar_one()
        message_id = f"{key}/{n}"
        connection.execute(_ORDER, {"message_id": message_id})
        self._app.outbox.append(connection, "Changed", {"key": key, "n": n}, key=key, message_id=message_id)

    def overtake(self, key: str) -> None:
        """Let a transaction change the key before one that began to write earlier."""
        engine = self._app.database
        with engine.begin() as earlier:
            earlier.execute(_ELSEWHERE)
            with engine.begin() as later:
                later.execute(_ELSEWHERE)
                self.change(later, key)
            self.change(earlier, key)

    def write_side_by_side(self) -> None:
        threads = [threading.Thread(target=self._write, args=(random.Random(number),)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _write(self, chance: random.Random) -> None:
        pause = threading.Event()
        for _ in range(CHANGES_EACH):
            with self._app.database.begin() as connection:
                connection.execute(_ELSEWHERE)
                pause.wait(chance.uniform(0, 0.03))
                self.change(connection, chance.choice(KEYS))
                pause.wait(chance.uniform(0, 0.01))


def changes_seen(scene: Scene, processor_id: str) -> dict[str, list[int]]:
    """Return the counts of each key's changes as a processor saw them."""
    seen = defaultdict(list)
    sql = "SELECT message_id FROM effects WHERE processor_id = :name ORDER BY number"
    for row in scene.shop.execute(sql, name=processor_id):
        key, n = row["message_id"].split("/")
        seen[key].append(int(n))
    return dict(seen)


def test_positions_keep_the_order_of_each_key_and_transactions_do_not(postgres_scene: Scene) -> None:
    scene = postgres_scene
    writers = KeyWriters(scene)
    orders = [BY_POSITION, BY_TRANSACTION]
    with scene.instance(orders) as one, scene.instance(orders) as other:
        one.wait_for_line("starting")
        other.wait_for_line("starting")
        writers.overtake(KEYS[0])
        writers.write_side_by_side()
        scene.wait_for_delivery(*orders)
    counts = {row["name"]: row["n"] for row in scene.shop.execute("SELECT name, n FROM keys")}
    assert sum(counts.values()) == 2 + WRITERS * CHANGES_EACH
    by_position, by_transaction = (changes_seen(scene, name) for name in orders)
    assert by_position == {key: list(range(1, n + 1)) for key, n in counts.items()}
    violations = {key: falls(numbers) for key, numbers in by_transaction.items()}
    print(f"\n{sum(counts.values())} changes; out of a key's order in the order of transactions: {violations}")
    assert violations[KEYS[0]] > 0
    scene.ends = Ends(
        frozenset(f"{key}/{n}" for key, last in counts.items() for n in range(1, last + 1)), frozenset(), frozenset()
    )
    assert scene.books.problems(orders) == []
