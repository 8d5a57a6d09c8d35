"""Sends receipts in the background: now, later, every minute, and exactly once where it matters.

Run it with ``holdfast run app:hf --migrate -v``.
"""

from __future__ import annotations

import logging

from sqlalchemy import text

from holdfast import Discard, Holdfast, JobContext

hf = Holdfast("sqlite:///mail.db")
log = logging.getLogger("mail")


@hf.job(topic="mail", max_attempts=3, retry_base_seconds=0.2)
def send(context: JobContext, to: str, order: int) -> str:
    """Send one receipt. Addresses without an @ cannot be helped by trying again."""
    if "@" not in to:
        raise Discard(f"{to!r} is no address")
    if to.startswith("flaky") and context.failures == 0:
        raise ConnectionError("the mail server hung up")
    log.info("receipt for order %d to %s, attempt %d", order, to, context.attempt)
    return f"receipt-{order}"


@hf.job(topic="points")
def add_points(context: JobContext, customer: str, points: int) -> None:
    """Write in the transaction of the job's own completion: both are kept, or neither is."""
    context.transaction.execute(
        text("INSERT INTO points (customer, points) VALUES (:customer, :points)"),
        {"customer": customer, "points": points},
    )


@hf.job(topic="mail")
async def remind(context: JobContext) -> None:
    """Say which minute it is for."""
    log.info("reminders for %s", context.run_at)


hf.periodic(remind, "* * * * *", timezone="Europe/Berlin")
