"""Entries and letters as tests want them: complete, and different where a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.records.database import changing
from holdfast.records.dead_letters import DeadLetter, DeadLetters
from holdfast.records.history import History, HistoryStatus, NewEntry
from holdfast.records.row_keys import dead_letter_key

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
AMSTERDAM_NOON = NOON.astimezone(timezone(timedelta(hours=1)))


def days_ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def add_entry(engine: Engine, /, **differences: Any) -> int:
    values: dict[str, Any] = {
        "engine": "hmac",
        "operation": "rotate",
        "status": HistoryStatus.SUCCEEDED,
        "duration_ms": 12,
        "correlation_id": "c-1",
        **differences,
    }
    with changing(engine) as connection:
        return History(engine).add(connection, NewEntry(**values))


def letter(**differences: Any) -> DeadLetter:
    item = differences.pop("item", "m-1")
    values: dict[str, Any] = {
        "item_id": item,
        "engine": "hmac",
        "original_queue": "hmac-rotation-queue",
        "original_message": '{"key": "ü"}',
        "error_message": "vault said no",
        "dequeue_count": 5,
        "first_failure_at": NOON - timedelta(hours=1),
        "last_failure_at": NOON,
        "correlation_id": "c-1",
        **differences,
    }
    return DeadLetter(**{"row_key": dead_letter_key(item, values["last_failure_at"]), **values})


def add_letter(engine: Engine, /, **differences: Any) -> DeadLetter:
    new = letter(**differences)
    with changing(engine) as connection:
        assert DeadLetters(engine).add(connection, new)
    return new


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
