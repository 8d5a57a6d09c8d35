"""``PollTrigger``: a trigger for a host that calls it on a timer, such as Azure Functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.keywords import require_known, takes
from ..core.normalizer import EventNormalizer, make_normalizer
from ..core.retry import RetryPolicy
from ..core.telemetry import MetricsCollector
from ..lease.foreign import ForeignStateStore
from ..lease.store import StateStore
from .definition import PollSettings, check_source
from .runner import PollRunner
from .sources.protocol import SimpleSource, SourceAdapter

if TYPE_CHECKING:
    from typing import Unpack

    from .options import PollOptions


class PollTrigger:
    """Delivers changed rows each time ``run`` is called; at most one caller anywhere does so at a time."""

    @takes(PollSettings)
    def __init__(
        self,
        *,
        name: str,
        source: SourceAdapter | SimpleSource,
        checkpoint_store: StateStore | ForeignStateStore,
        normalizer: EventNormalizer | None = None,
        batch_size: int = 100,
        max_batches_per_tick: int = 1,
        lease_ttl_seconds: int = 120,
        retry_policy: RetryPolicy | None = None,
        metrics: MetricsCollector | None = None,
        **options: Unpack[PollOptions],
    ) -> None:
        require_known("PollTrigger", options, PollSettings)
        check_source(source)
        self._name = name
        self._runner = partial(
            PollRunner,
            name=name,
            source=source,
            state_store=checkpoint_store,
            normalizer=normalizer if normalizer is not None else _normalizer_for(source),
            batch_size=batch_size,
            max_batches_per_tick=max_batches_per_tick,
            lease_ttl_seconds=lease_ttl_seconds,
            retry_policy=retry_policy,
            metrics=metrics,
            **options,
        )
        checked = self._runner(handler=_unused)  # refuses wrong settings now, not at the first tick
        self._runner = partial(self._runner, telemetry=checked.telemetry)

    @property
    def name(self) -> str:
        """Return the poller's name."""
        return self._name

    def run(self, *, timer: object, handler: Callable[..., Any]) -> int:
        """Deliver what changed to ``handler`` (``def`` or ``async def``); return how many events were delivered."""
        del timer
        return self._runner(handler=handler).tick()

    async def run_async(self, *, timer: object, handler: Callable[..., Any]) -> int:
        """Do what ``run`` does without blocking the event loop; an async handler runs on this loop."""
        del timer
        loop = asyncio.get_running_loop()
        runner = self._runner(handler=handler, loop=loop)
        thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-tick")  # the loop's own threads serve the handler
        try:
            return await loop.run_in_executor(thread, copy_context().run, runner.tick)
        finally:
            thread.shutdown(wait=False)


def _unused(events: object) -> None:
    """Stand in for a handler while settings are checked."""


def _normalizer_for(source: SourceAdapter | SimpleSource) -> EventNormalizer | None:
    """Return how a source's records become events; None when the source's rows know by themselves.

    Raises:
        ValueError: the source does not say which columns are cursor and key.
    """
    if isinstance(source, SourceAdapter):
        return None
    cursor_column, pk_columns = getattr(source, "cursor_column", None), getattr(source, "pk_columns", None)
    if isinstance(cursor_column, str) and isinstance(pk_columns, list):
        return make_normalizer(cursor_column=cursor_column, pk_columns=pk_columns)
    raise ValueError(
        "The source does not expose 'cursor_column' and 'pk_columns', so its records cannot become events by "
        "themselves. Pass normalizer=…"
    )
