"""A shop that is loaded, and has talked to its database, before its workers are forked.

``place`` writes an order and a message in one transaction, then enqueues a job; an odd order is taken back.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import text

from holdfast import Holdfast

hf = Holdfast(os.environ["SHOP_URL"])
hf.migrate()


@hf.job(name="pack")
def pack(order_id: int) -> None: ...


class TakenBackError(Exception): ...


def place(number: int) -> None:
    with hf.database.begin() as connection:
        connection.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": number})
        hf.outbox.append(connection, "OrderPlaced", {"order": number}, message_id=str(number))
        if number % 2:
            raise TakenBackError
    pack.enqueue(order_id=number)


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Place the order that the path names, and tell which process did."""
    number = int(environ["PATH_INFO"].strip("/"))
    try:
        place(number)
        status = "201 Created"
    except TakenBackError:
        status = "409 Conflict"
    start_response(status, [("Content-Type", "text/plain")])
    return [f"{number} {os.getpid()}".encode()]
