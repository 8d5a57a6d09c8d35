"""What was sent to the database while a test ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import event
from sqlalchemy.engine import Engine


@dataclass(frozen=True, slots=True)
class Sent:
    """One statement, and with how many rows of values it was sent."""

    statement: str
    rows: int


@contextmanager
def sent_to(engine: Engine, verbs: tuple[str, ...] = ("INSERT", "UPDATE", "DELETE")) -> Iterator[list[Sent]]:
    """Collect what is sent and begins with one of ``verbs``."""
    seen: list[Sent] = []

    def note(
        _connection: object, _cursor: object, statement: str, values: object, _context: object, many: bool
    ) -> None:
        if statement.startswith(verbs):
            seen.append(Sent(statement, len(values) if many and isinstance(values, (list, tuple)) else 1))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)
