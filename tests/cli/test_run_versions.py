"""`holdfast run` of two real workers whose release has a processor's version that another was promoted over."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from tests.cli.shop import Shop, assert_one_sentence
from tests.cli.workers import Running, end, two_running
from tests.components.processes import wait_until

APP = """
from sqlalchemy import text

from holdfast import Holdfast

hf = Holdfast()

def write(version, messages, context):
    for message in messages:
        values = {"version": version, "id": message.message_id}
        context.transaction.execute(text("INSERT INTO effects VALUES (:version, :id)"), values)

@hf.processor("totals", version=1, poll_seconds=0.05)
def old(messages, context):
    write(1, messages, context)

@hf.processor("totals", version=2, poll_seconds=0.05)
def new(messages, context):
    write(2, messages, context)

@hf.job(topic="mail", name="mail")
def mail(context):
    context.transaction.execute(text("INSERT INTO effects VALUES (0, 'mail')"))
"""
RETIRED_MEANWHILE = "Processor totals v1 partition 0 does not run: Processor totals v1 partition 0 was retired"
RETIRED_BEFORE = (
    "Processor 'totals' version 1 does not run until that is mended: Processor 'totals' version 1 was retired when "
    "version 2 was promoted"
)
MAILED = (0, "mail")


@dataclass
class Versions:
    """A shop in which version 2 of a processor runs beside version 1, and jobs run in the same workers."""

    shop: Shop
    hf: Holdfast

    def append(self, message_id: str) -> None:
        with self.hf.database.begin() as connection:
            self.hf.outbox.append(connection, "Paid", {}, message_id=message_id)

    def mail(self) -> None:
        self.hf.jobs.definitions[0].enqueue()

    def promote(self) -> None:
        assert self.shop.cli("processor", "promote", "totals", "--version", "2", "--force").returncode == 0

    def effects(self) -> list[tuple[int, str]]:
        with self.hf.database.connect() as connection:
            found = connection.execute(text("SELECT version, message_id FROM effects")).all()
        return sorted((version, message_id) for version, message_id in found)

    def wait_for(self, *effects: tuple[int, str]) -> None:
        wait_until(lambda: set(effects) <= set(self.effects()), f"{effects} among the effects")


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def versions(request: pytest.FixtureRequest, shop: Shop) -> Versions:
    shop.url = request.getfixturevalue(request.param)
    shop.write_app(APP)
    hf = shop.holdfast()
    hf.job(topic="mail", name="mail")(lambda: None)
    with hf.database.begin() as connection:
        connection.execute(text("CREATE TABLE effects (version integer NOT NULL, message_id varchar(50) NOT NULL)"))
    return Versions(shop, hf)


def assert_retired_alone(workers: tuple[Running, Running], said: str) -> None:
    """Each worker says once, as an error, that the retired version does not run, and of nothing else."""
    for worker in workers:
        errors = [line for line in worker.output.splitlines() if "ERROR holdfast.worker: " in line]
        assert [said in line for line in errors] == [True], worker.output


def test_a_version_that_is_retired_stops_alone_in_every_worker(versions: Versions) -> None:
    versions.append("m1")
    with two_running(versions.shop, log="before") as workers:
        versions.wait_for((1, "m1"), (2, "m1"))
        versions.promote()
        for worker in workers:
            wait_until(lambda worker=worker: RETIRED_MEANWHILE in worker.output, "both to say so")  # type: ignore[misc]
        versions.append("m2")
        versions.mail()
        versions.wait_for((2, "m2"), MAILED)
        end(*workers)
    assert_retired_alone(workers, RETIRED_MEANWHILE)
    assert versions.effects() == [MAILED, (1, "m1"), (2, "m1"), (2, "m2")]
    listed = versions.shop.cli("processor", "list").stdout
    assert "retired" in listed
    assert "Processor 'totals' version 1, as it is declared, does not run: " in listed


def test_after_a_promotion_the_same_release_starts_again_without_the_retired_version(versions: Versions) -> None:
    with two_running(versions.shop, log="before") as workers:
        versions.append("m1")
        versions.wait_for((1, "m1"), (2, "m1"))
        end(*workers)
    versions.promote()
    with two_running(versions.shop, log="after") as workers:
        versions.append("m2")
        versions.mail()
        versions.wait_for((2, "m2"), MAILED)
        end(*workers)
    assert_retired_alone(workers, RETIRED_BEFORE)
    assert versions.effects() == [MAILED, (1, "m1"), (2, "m1"), (2, "m2")]
    assert_one_sentence(versions.shop.cli("run", "--strict"), 2, "was retired when version 2 was promoted")


def test_strictly_a_version_that_is_retired_ends_every_worker(versions: Versions) -> None:
    with two_running(versions.shop, "--strict", log="strict") as workers:
        versions.append("m1")
        versions.wait_for((1, "m1"), (2, "m1"))
        versions.promote()
        assert [worker.wait() for worker in workers] == [1, 1]
    for worker in workers:
        assert "was retired when a newer version was promoted" in worker.output.splitlines()[-1]
