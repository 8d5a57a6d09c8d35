"""[HORIZON-SHARED] A sample that triggers share is taken before each of their reads; after one, it would lose rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast.trigger.sources.horizons import samples
from holdfast.trigger.sources.protocol import SourceAdapter
from holdfast.trigger.sources.sqlalchemy import SqlAlchemySource
from tests.clocks import SteppedClock
from tests.trigger.shop import Shop

INSERT = "INSERT INTO orders (id, status) VALUES (:id, 'new')"


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    found = Shop(postgres_url)
    samples.samples_of(found.engine)._clock = SteppedClock()
    yield found
    found.close()


def source_of(shop: Shop, name: str) -> SourceAdapter:
    shop.hf.trigger("orders", cursor="updated_at", name=name, horizon_margin_seconds=0.0)(lambda changes: None)
    source = shop.hf.runner(name).source
    source.validate()
    return source


def delivered_around_a_late_commit(shop: Shop, commit_first: list[Connection]) -> list[int]:
    """Return what one of two triggers delivers, when the slow writer of row 1 commits between sample and read."""
    one, other = source_of(shop, "one"), source_of(shop, "other")
    slow = shop.engine.connect()
    slow.execute(text(INSERT), {"id": 1})
    shop.place([2])
    commit_first.append(slow)
    one.fetch_changes({}, 10)
    slow.commit()
    found: list[int] = []
    checkpoint: dict[str, object] = {}
    for _ in range(3):
        result = other.fetch_changes(checkpoint, 10)
        checkpoint = result.next_checkpoint or checkpoint
        found += [int(str(dict(record)["id"])) for record in result.records]
        clock = samples.samples_of(shop.engine)._clock
        assert isinstance(clock, SteppedClock)
        clock.advance(1.0)
    slow.close()
    return found


def test_a_row_that_commits_after_the_shared_sample_is_delivered(shop: Shop) -> None:
    assert delivered_around_a_late_commit(shop, []) == [1, 2]


def test_a_sample_taken_after_the_read_began_loses_the_row(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the read has its snapshot, the slow writer commits, and only then a sample is taken."""
    open_writers: list[Connection] = []
    fetching = SqlAlchemySource._fetching

    @contextmanager
    def with_a_snapshot(source: SqlAlchemySource, prepared: object) -> Iterator[Connection]:
        with fetching(source, prepared) as connection:  # type: ignore[arg-type]  # what the method gets
            connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.exec_driver_sql("SELECT count(*) FROM orders")
            for writer in open_writers:
                writer.commit()
            yield connection
            connection.exec_driver_sql("COMMIT")

    def anew(found: samples.Samples, connection: Connection, kind: str, take: object, used: object) -> object:
        with shop.engine.connect() as other:
            return samples.Sample(0.0, take(other))  # type: ignore[operator]  # what the method gets

    monkeypatch.setattr(SqlAlchemySource, "_fetching", with_a_snapshot)
    monkeypatch.setattr(samples.Samples, "newest", anew)
    one = source_of(shop, "one")
    slow = shop.engine.connect()
    slow.execute(text(INSERT), {"id": 1})
    shop.place([2])
    open_writers.append(slow)
    first = one.fetch_changes({}, 10)
    then = one.fetch_changes(first.next_checkpoint or {}, 10)
    slow.close()
    found = [int(str(dict(record)["id"])) for record in (*first.records, *then.records)]
    assert found == [2], "the planted bug was not found"
