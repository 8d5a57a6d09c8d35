"""``trigger(strategy="outbox")``: a trigger over an outbox table, which is looked up when it first runs.

An outbox's columns decide its cursor, so its source asks the database when it is made. A function app is imported long
before that, and must be importable while the database does not answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ..core.errors import ConfigurationError
from ..core.types import JsonObject, SourceDescriptor
from ..trigger.poll import PollTrigger
from ..trigger.sources.protocol import AdapterCapability, FetchResult, SourceAdapter


class OutboxLookup:
    """Looks an outbox up once; a look that fails raises, and the next one tries again."""

    def __init__(self, make_source: Callable[[], SourceAdapter]) -> None:
        self._make_source = make_source
        self._making = threading.Lock()
        self._made: SourceAdapter | None = None

    def source(self) -> SourceAdapter:
        """Return the outbox, the same each time.

        Raises:
            DbError: it cannot be looked up.
        """
        with self._making:
            if self._made is None:
                self._made = self._make_source()
            return self._made


class OutboxTrigger(PollTrigger):
    """A ``PollTrigger`` whose source is looked up by its first run."""

    def __init__(self, *, table: str, lookup: OutboxLookup, **settings: Any) -> None:
        super().__init__(source=_Unmade(table), **settings)
        self.lookup = lookup

    def run(self, *, timer: object, handler: Callable[..., Any]) -> int:
        """Deliver what was committed to ``handler``; return how many messages were delivered."""
        self._runner = partial(self._runner, source=self.lookup.source())
        return super().run(timer=timer, handler=handler)

    async def run_async(self, *, timer: object, handler: Callable[..., Any]) -> int:
        """Do what ``run`` does without blocking the event loop."""
        self._runner = partial(self._runner, source=await asyncio.to_thread(self.lookup.source))
        return await super().run_async(timer=timer, handler=handler)


class _Unmade:
    """Stands for the source until there is one, while settings are checked."""

    def __init__(self, table: str) -> None:
        self.source_descriptor = SourceDescriptor(name=table, kind="outbox", fingerprint="")

    def validate(self) -> None:
        """Nothing to check yet."""

    def open(self) -> None:
        """Nothing to open yet."""

    def close(self) -> None:
        """Nothing to close yet."""

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        """Refuse: there is no source."""
        raise ConfigurationError("The outbox was not looked up yet.")

    def capability(self) -> AdapterCapability:
        """Refuse: there is no source."""
        raise ConfigurationError("The outbox was not looked up yet.")
