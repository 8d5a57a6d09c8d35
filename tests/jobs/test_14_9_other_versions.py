"""In a rolling deploy jobs of the new version wait, uncharged, for a worker whose handler takes their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.errors import PayloadError
from holdfast.jobs.grpc.receipts import Receipt
from holdfast.jobs.grpc.reports import message_of, report_of
from holdfast.jobs.model import MISFIT_SECONDS, MOST_MISFITS, JobStatus, PutBack
from holdfast.jobs.payload import OtherVersionError, PayloadCodec
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue
from tests.jobs.workers import Work


def handler(version: Callable[..., Any]) -> Callable[..., Any]:
    version.__name__ = "send"
    return version


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_14_9_an_unexpected_argument_waits_for_the_new_worker(queue: Queue, max_attempts: int) -> None:
    def before(to: str) -> None:
        raise AssertionError("it was called without the argument")

    def after(to: str, cc: str = "") -> str:
        return f"{to} {cc}"

    old, new = Work(queue), Work(queue)
    old.job(handler(before), max_attempts=max_attempts)
    enqueued = new.job(handler(after), max_attempts=max_attempts).enqueue(to="anne", cc="bert")
    with old.running():
        wait_until(lambda: queue.status(enqueued.id) == "scheduled", "it to be given back")
        [stats] = queue.store.stats()
    assert "holds 'cc', which it does not take: another version" in queue.column(enqueued.id, "last_error")
    assert (stats.without_worker, queue.column(enqueued.id, "failures")) == ({"send": 1}, 0)
    assert (queue.history(), queue.dead_letters()) == ([], [])
    queue.step(MISFIT_SECONDS + 1)
    with new.running():
        new.until_empty()
    assert [(entry["status"], entry["output"]) for entry in queue.history()] == [("Succeeded", '"anne bert"')]


def test_14_9_one_that_fits_no_worker_is_a_dead_letter_in_the_end(queue: Queue) -> None:
    job_id = queue.add(max_attempts=5).id
    with queue.engine.begin() as connection:
        connection.execute(text("UPDATE holdfast_jobs SET misfits = :most - 1"), {"most": MOST_MISFITS})
    decided: list[JobStatus | None] = []
    for _ in range(2):
        job = queue.claim_one()
        report = PutBack(job.claim, MISFIT_SECONDS, "it lacks 'to'.", is_unbegun=True, is_misfit=True)
        decided += queue.store.put_back(ANNE, [report]).values()
        queue.step(MISFIT_SECONDS + 1)
        queue.store.promote()
    assert decided == [None, JobStatus.DEAD]
    assert queue.status(job_id) == "dead"
    [letter] = queue.dead_letters()
    assert letter["error_message"] == f"it lacks 'to'. It waited for a worker of that version {MOST_MISFITS} times."
    queue.store.retry([job_id], "eve")
    assert (queue.column(job_id, "misfits"), queue.status(job_id)) == (0, "ready")


def test_14_9_what_ran_after_all_waits_for_no_version(queue: Queue) -> None:
    queue.add()
    queue.store.put_back(ANNE, [PutBack(queue.claim_one().claim, 1, "misfit", is_misfit=True)])
    queue.step(2)
    queue.store.promote()
    queue.store.put_back(ANNE, [PutBack(queue.claim_one().claim, 1, "the handler snoozed")])
    [stats] = queue.store.stats()
    assert (stats.jobs, stats.without_worker) == ({JobStatus.SCHEDULED: 1}, {})


@dataclass
class Address:
    street: str
    town: str = ""


class TestWhichPayloadsAreOfAnotherVersion:
    @pytest.mark.parametrize(
        ("payload", "said"),
        [
            ('{"to":{"street":"x"},"cc":1}', "holds 'cc'"),
            ("{}", "lacks 'to'"),
            ('{"to":{"street":"x","zip":"1"}}', "Address has no field 'zip'"),
            ('{"to":{"town":"x"}}', "Address needs 'street'"),
        ],
    )
    def test_14_9_names_that_differ(self, payload: str, said: str) -> None:
        def send(to: Address) -> None: ...

        with pytest.raises(OtherVersionError, match=said):
            PayloadCodec(send).decode(payload)

    def test_14_9_fields_of_a_pydantic_model(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        model = pydantic.create_model("Order", __config__={"extra": "forbid"}, number=(int, ...))

        def send(order: Any) -> None: ...

        send.__annotations__["order"] = model
        codec = PayloadCodec(send)
        for payload in ('{"order":{"number":1,"colour":"red"}}', '{"order":{}}'):
            with pytest.raises(OtherVersionError):
                codec.decode(payload)
        with pytest.raises(PayloadError) as caught:
            codec.decode('{"order":{"number":"x","colour":"red"}}')
        assert not isinstance(caught.value, OtherVersionError)

    @pytest.mark.parametrize("payload", ['{"to":1}', '{"to":{"street":1}}', "[]", "{"])
    def test_14_9_values_that_do_not_fit_are_nobodys(self, payload: str) -> None:
        def send(to: Address) -> None: ...

        with pytest.raises(PayloadError) as caught:
            PayloadCodec(send).decode(payload)
        assert not isinstance(caught.value, OtherVersionError)


def test_14_9_a_remote_worker_says_it_too(queue: Queue) -> None:
    queue.add()
    report = PutBack(queue.claim_one().claim, MISFIT_SECONDS, "it lacks 'to'.", is_misfit=True)
    message = message_of(report, most_bytes=1000)
    receipt = Receipt(keeps_key=False, correlation_id="")
    assert report_of("reports[0]", report.claim, receipt, message, most_bytes=1000) == report
