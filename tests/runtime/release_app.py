"""One release of an application: ``python -m tests.runtime.release_app``, told by the environment which and where.

Every release has the trigger ``orders``, the job ``old``, a processor ``placed`` and an engine ``billing``; release 2
adds the trigger ``audit`` and the job ``new``. What they do is written to the table ``done`` in the handler's
transaction. The engine and its queue have the same name in every application, and its messages the same correlation
ids: the processor sends one for each message of the outbox, under that one's correlation id.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import text

from holdfast import Holdfast, Message, RowChange

TOPIC = "mail"
DONE = text("INSERT INTO done (app, release_number, work, item, status) VALUES (:app, :release, :work, :item, :status)")
ADDED_IN = {"orders": 1, "audit": 2}
JOBS_ADDED_IN = {"old": 1, "new": 2}


def make(url: str, app_name: str, release: int) -> Holdfast:
    """Return the release of an application; jobs are told apart by its name, for a topic is the whole database's."""
    hf = Holdfast(url, app_name=app_name)
    who = {"app": app_name, "release": release}
    for name in (name for name, since in ADDED_IN.items() if since <= release):
        _watch(hf, name, who)
    for name in (name for name, since in JOBS_ADDED_IN.items() if since <= release):
        _serve(hf, name, who)
    _bill(hf, who)
    return hf


def _watch(hf: Holdfast, name: str, who: dict[str, Any]) -> None:
    @hf.trigger("orders", name=name, cursor="updated_at", batch_size=7, poll_seconds=0.05, horizon_margin_seconds=0.1)
    def seen(changes: list[RowChange], context: Any) -> None:
        rows = [{"work": name, "item": each.pk["id"], "status": (each.after or {})["status"]} for each in changes]
        context.transaction.execute(DONE, [{**who, **row} for row in rows])


def _serve(hf: Holdfast, name: str, who: dict[str, Any]) -> None:
    @hf.job(TOPIC, name=f"{hf.app_name}.{name}")
    def ran(context: Any, item: int) -> None:
        context.transaction.execute(DONE, {**who, "work": name, "item": item, "status": "ran"})


def _bill(hf: Holdfast, who: dict[str, Any]) -> None:
    @hf.engine("billing", operation="bill", poll_seconds=0.05)
    def bill(context: Any, message: Any) -> None:
        row = {"work": "billed", "item": message.payload["item"], "status": "ran"}
        context.transaction.execute(DONE, {**who, **row})

    @hf.processor(f"{hf.app_name}.placed", types=["OrderPlaced"], start_from="beginning")
    def placed(messages: list[Message], context: Any) -> None:
        for message in messages:
            item = message.data["item"]
            context.transaction.execute(DONE, {**who, "work": "placed", "item": item, "status": "ran"})
            bill.send({"item": item}, correlation_id=message.correlation_id, connection=context.transaction)


def main() -> None:
    """Work until told to stop."""
    hf = make(os.environ["WORKER_URL"], os.environ["WORKER_APP"], int(os.environ["WORKER_RELEASE"]))
    hf.run(concurrency=4, on_started=lambda: print("starting", flush=True))


if __name__ == "__main__":
    main()
