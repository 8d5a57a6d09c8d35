"""Line 14, on the command line: listings name the row that cannot be read and show the others; it can be retried."""

from __future__ import annotations

from sqlalchemy import text

from holdfast.jobs.model import JobId
from tests.cli.desk import Desk

DAMAGE = {
    "postgresql": "UPDATE holdfast_jobs SET run_at = '-infinity' WHERE id = :id",
    "sqlite": "UPDATE holdfast_jobs SET run_at = 5 WHERE id = :id",
}


def damage(desk: Desk, job_id: JobId) -> None:
    with desk.queue.engine.begin() as connection:
        connection.execute(text(DAMAGE[connection.dialect.name]), {"id": job_id})


def test_14_14_a_listing_shows_the_others_and_the_bad_one_can_be_cancelled(desk: Desk) -> None:
    ids = [desk.queue.add().id for _ in range(3)]
    damage(desk, ids[1])
    said = f"The row of holdfast_jobs with id '{ids[1]}' cannot be read: its column 'run_at' holds"
    listed = desk("jobs", "list", "--json")
    assert [item["id"] for item in listed.items] == [ids[2], ids[0]]
    [sentence] = listed.json["unreadable"]
    assert sentence.startswith(said)
    assert said in desk("jobs", "list").err
    assert "No job in the queue fits" not in desk("jobs", "list", "--limit", 1).out
    assert "cancelled" in desk("jobs", "cancel", ids[1], "--yes").out
