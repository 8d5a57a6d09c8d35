"""Interleavings in which a row is skipped unless the reader waits for it, played step by step."""

from __future__ import annotations

from tests.components.processes import wait_until
from tests.trigger.late_commits.items import Count, Items, Poller

ATTEMPTS = 20

_BLOCKED = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT variable_value > 0 FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}

# Gives a transaction its place in the order of time and of ids before it waits.
_BEGUN = {"postgresql": "SELECT pg_current_xact_id()", "mysql": "SELECT 1"}

# Whether enough of the present second is left, and PostgreSQL rounds to it and not up to the next.
_EARLY = {
    "postgresql": "SELECT CAST(extract(microseconds FROM clock_timestamp()) AS int) % 1000000 < 200000",
    "mysql": "SELECT MICROSECOND(NOW(6)) < 200000",
    "sqlite": "SELECT CAST(strftime('%f', 'now') * 1000 AS INT) % 1000 < 200",
}


def late_commit(items: Items, poller: Poller) -> Count:
    """One transaction writes row 1 and stays open; another writes row 2 and commits; the reader looks; 1 commits."""
    slow = items.session()
    slow.run(items.insert(1))
    items.execute(items.insert(2))
    items.let_tick_pass(2)
    items.look(poller, 2)
    slow.commit()
    return items.drain(poller)


def savepoints(items: Items, poller: Poller) -> Count:
    """The same with row 1 written under a savepoint that was released, after another that was rolled back."""
    slow = items.session()
    slow.run("SAVEPOINT given_up")
    slow.run(items.insert(3))
    slow.run("ROLLBACK TO SAVEPOINT given_up")
    slow.run("SAVEPOINT kept")
    slow.run(items.insert(1))
    slow.run("RELEASE SAVEPOINT kept")
    items.execute(items.insert(2))
    items.let_tick_pass(2)
    items.look(poller, 2)
    slow.commit()
    return items.drain(poller)


def update_that_waited(items: Items, poller: Poller) -> Count:
    """An update of row 1 waits for a row lock with its old time, while row 2 is updated, committed and looked at."""
    items.execute(items.insert(1, 2))
    poller.poll_until(2)
    holder, waiter = items.session(), items.session()
    holder.run(items.update(1))
    waiter.run(_BEGUN[items.engine.dialect.name])
    waiting = waiter.start(items.update(1))
    wait_until(lambda: items.scalar(_BLOCKED[items.engine.dialect.name]), "the update waits for the row lock")
    items.execute(items.update(2))
    items.let_tick_pass(2)
    items.look(poller, 2)
    holder.commit()
    waiting.result(timeout=30)
    items.look(poller, 2)
    waiter.commit()
    return items.drain(poller)


def lower_key_in_the_same_tick(items: Items, poller: Poller) -> Count:
    """Row 2 is updated, the reader looks, and then row 1 is updated within the same tick of the clock."""
    items.execute(items.insert(1, 2))
    poller.poll_until(2)
    for _ in range(ATTEMPTS):
        wait_until(lambda: items.scalar(_EARLY[items.engine.dialect.name]), "the beginning of a second")
        items.execute(items.update(2))
        items.look(poller, 2)
        items.execute(items.update(1))
        if items.changed(1) == items.changed(2):
            return items.drain(poller)
    raise AssertionError(f"two updates did not fall into one tick in {ATTEMPTS} attempts")
