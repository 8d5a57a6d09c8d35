"""``DbOut``: what a handler under ``output`` calls to write rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..binding.writer import DbWriter
from ..core.config import DbConfig
from ..core.errors import ConfigurationError
from ..database.pools import EngineProvider
from .models import is_row, to_row


class DbOut:
    """Writes what it is given into one table, all or nothing. One per decorated handler; safe between threads."""

    def __init__(
        self,
        *,
        url: str | None,
        db_config: DbConfig | None,
        table: str,
        schema: str | None,
        action: Literal["insert", "upsert"],
        conflict_columns: list[str] | None,
        engine_provider: EngineProvider | None,
    ) -> None:
        self._target: dict[str, Any] = {
            "url": url,
            "db_config": db_config,
            "table": table,
            "schema": schema,
            "engine_provider": engine_provider,
        }
        self._conflict_columns = list(conflict_columns or []) if action == "upsert" else None

    def __repr__(self) -> str:
        return f"DbOut({self._target['table']!r})"

    def set(self, data: object | Sequence[object] | None) -> None:
        """Write one row (a dict, Pydantic model or dataclass object) or a list of them; None and ``[]`` write nothing.

        Raises:
            ConfigurationError: it is something else, or a column is not there.
            WriteError: the database refused it.
        """
        rows = _rows(data)
        if not rows:
            return
        with DbWriter(**self._target) as writer:
            if self._conflict_columns is None:
                writer.insert_many(rows=rows)
            else:
                writer.upsert_many(rows=rows, conflict_columns=self._conflict_columns)


def _rows(data: object) -> list[dict[str, object]]:
    if data is None:
        return []
    if is_row(data):
        return [to_row(data)]
    if not isinstance(data, list):
        raise ConfigurationError(
            f"DbOut.set() takes a dict, a Pydantic model, a dataclass object, a list of them, or None, not "
            f"{type(data).__name__}."
        )
    for number, item in enumerate(data, start=1):
        if not is_row(item):
            raise ConfigurationError(
                f"DbOut.set(): row {number} of {len(data)} is a {type(item).__name__}, not a dict, Pydantic model or "
                "dataclass object. Nothing was written."
            )
    return [to_row(item) for item in data]
