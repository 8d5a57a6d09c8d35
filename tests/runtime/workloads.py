"""The four workloads, one adapter each: declare a handler, run items until nothing more happens, say how they ended.

Only public means are used. An item is one row of a trigger, one job, one message of a processor or of an engine.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast import EngineProvider, Holdfast, RowChange
from holdfast.core.errors import DbError
from holdfast.core.retry import RetryPolicy
from holdfast.core.types import JsonObject, RawRecord, SourceDescriptor
from holdfast.engines.context import EngineContext
from holdfast.records.failure_text import words_of
from holdfast.trigger.sources.protocol import AdapterCapability, FetchResult
from tests.components.processes import wait_until
from tests.runtime.account import TRIES, Settled

Handle = Callable[[str, Any], Any]
"""A handler under test: it gets the item and the context."""

ENGINES_HAVE_TRANSACTIONS = hasattr(EngineContext, "transaction")
AT_ONCE = RetryPolicy(max_retries=0, base_delay_seconds=0.001, max_delay_seconds=0.001)
ONCE_MORE = RetryPolicy(max_retries=TRIES - 1, base_delay_seconds=0.001, max_delay_seconds=0.001)
SETTLING_SECONDS = 40.0


class Workload(ABC):
    """A kind of work, in one database. ``handle`` is what every handler does; it is declared again for each run."""

    name: str
    limit_seconds: float | None = None
    """How long the work may take, for workloads that can be limited."""

    def __init__(self, url: str, provider: EngineProvider, *, lease_seconds: float = 30.0) -> None:
        self.url = url
        self.provider = provider
        self.lease_seconds = lease_seconds
        self.app_options: dict[str, Any] = {}

    def app(self) -> Holdfast:
        return Holdfast(self.url, engine_provider=self.provider, **self.app_options)

    @property
    def database(self) -> Engine:
        return self.app().database

    @abstractmethod
    def add(self, items: Sequence[str]) -> None:
        """Make the items wait."""

    @abstractmethod
    def run(self, items: Sequence[str], handle: Handle, *, is_async: bool = False) -> dict[str, Settled]:
        """Run until nothing more happens to any item; return what is recorded of each."""

    @abstractmethod
    def try_once(self, item: str, handle: Handle) -> None:
        """Run an item until its handler was called once, or nothing can be done now.

        Raises:
            DbError: what the workload itself raises.
        """

    @abstractmethod
    def is_done(self, item: str) -> bool:
        """Return whether an item is recorded as done."""

    @abstractmethod
    def resume(self, item: str) -> None:
        """Do what an operator does to have an item run again."""


def _batch_handler(handle: Handle, item: str, *, is_async: bool) -> Callable[[Any, Any], Any]:
    def call(batch: Any, context: Any) -> None:
        handle(item, context)

    async def call_async(batch: Any, context: Any) -> None:
        await handle(item, context)

    return call_async if is_async else call


class Triggers(Workload):
    """One trigger for each item: whoever ends its transaction stops it."""

    name = "trigger"

    def add(self, items: Sequence[str]) -> None:
        """The row is in the source."""

    def run(self, items: Sequence[str], handle: Handle, *, is_async: bool = False) -> dict[str, Settled]:
        return {item: self._run(item, handle, is_async) for item in items}

    def declared(self, item: str, handle: Handle, *, is_async: bool = False) -> Holdfast:
        app = self.app()
        handler = _batch_handler(handle, item, is_async=is_async)
        app.trigger(
            name=item,
            source=OneRow(item),
            normalizer=_event,
            retry_policy=AT_ONCE,
            lease_seconds=self.lease_seconds,
            tick_deadline_seconds=self.limit_seconds,
        )(handler)
        return app

    def _run(self, item: str, handle: Handle, is_async: bool) -> Settled:
        app = self.declared(item, handle, is_async=is_async)
        errors = [error for _ in range(TRIES) if (error := failure_of(app.runner(item).tick))]
        if self.is_done(item):
            return Settled(is_done=True)
        stopped = stopped_reason(app, item)
        return Settled(False, stopped is not None, stopped or (str(errors[-1]) if len(errors) == TRIES else None))

    def try_once(self, item: str, handle: Handle) -> None:
        self.declared(item, handle).runner(item).tick()

    def is_done(self, item: str) -> bool:
        view = self.app().state.read(item)
        return view is not None and bool(view.checkpoint)

    def resume(self, item: str) -> None:
        self.app().resume_trigger(item)


def stopped_reason(app: Holdfast, trigger: str) -> str | None:
    """Return why a trigger is stopped until it is resumed, None when it is not."""
    view = app.state.read(trigger)
    stopped = None if view is None else view.document.get("stopped")
    return None if stopped is None else str(stopped["reason"])


class OneRow:
    """A source with one row that never changes."""

    def __init__(self, item: str) -> None:
        self.source_descriptor = SourceDescriptor(name=item, kind="test", fingerprint=item)

    def validate(self) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def capability(self) -> AdapterCapability:
        return AdapterCapability()

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        if checkpoint:
            return FetchResult([], caught_up=True)
        return FetchResult([{"id": 1}], {"cursor": 1}, caught_up=True)


def _event(record: RawRecord, source: SourceDescriptor) -> RowChange:
    return RowChange(event_id="1", op="upsert", source=source, cursor=1, pk={"id": 1}, before=None, after=dict(record))


class Processors(Workload):
    """One processor for each item, which reads messages of its own type."""

    name = "processor"
    never_again = AT_ONCE
    options: ClassVar[dict[str, Any]] = {"retry_policy": ONCE_MORE}

    def add(self, items: Sequence[str]) -> None:
        app = self.app()
        with app.database.begin() as connection:
            for item in items:
                app.outbox.append(connection, item, {})

    def run(self, items: Sequence[str], handle: Handle, *, is_async: bool = False) -> dict[str, Settled]:
        return {item: self._run(item, handle, is_async) for item in items}

    def declared(self, item: str, handle: Handle, *, is_async: bool = False) -> Holdfast:
        app = self.app()
        handler = _batch_handler(handle, item, is_async=is_async)
        app.processor(item, types=[item], lease_seconds=self.lease_seconds, **self.options)(handler)
        return app

    def _run(self, item: str, handle: Handle, is_async: bool) -> Settled:
        app = self.declared(item, handle, is_async=is_async)
        runs = [failure_of(lambda: app.processors.run_until_caught_up(item)) for _ in range(TRIES)]
        [place] = app.processors.checkpoints.of(item)  # the second run shows whether it is left alone
        return Settled(place.checkpoint is not None, not place.may_run, place.reason or (str(runs[-1]) or None))

    def try_once(self, item: str, handle: Handle) -> None:
        self.declared(item, handle).processors.run_until_caught_up(item)

    def is_done(self, item: str) -> bool:
        return any(place.checkpoint is not None for place in self.app().processors.checkpoints.of(item))

    def resume(self, item: str) -> None:
        self.app().processors.operator.resume(item, actor="test")


class Queued(Workload):
    """What is common to workloads with a queue: one worker runs all items, and each ends in history or dead letters."""

    @abstractmethod
    def declared(self, handle: Handle, *, is_async: bool = False) -> Holdfast:
        """Return an application with the handler."""

    def run(self, items: Sequence[str], handle: Handle, *, is_async: bool = False) -> dict[str, Settled]:
        with running(self.declared(handle, is_async=is_async)), suppress(TimeoutError):  # the account says which
            wait_until(lambda: self.settled().keys() >= set(items), "every item to end", SETTLING_SECONDS)
        settled = self.settled()
        return {item: settled.get(item, Settled(is_done=False)) for item in items}

    def try_once(self, item: str, handle: Handle) -> None:
        left = threading.Event()

        def watched(item: str, context: Any) -> None:
            try:
                handle(item, context)
            finally:
                left.set()

        with running(self.declared(watched)):
            assert left.wait(SETTLING_SECONDS)

    def is_done(self, item: str) -> bool:
        return self.settled().get(item, Settled(is_done=False)).is_done

    def settled(self) -> dict[str, Settled]:
        succeeded = "SELECT correlation_id FROM holdfast_history WHERE status = 'Succeeded'"
        letters = "SELECT correlation_id, error_message FROM holdfast_dead_letters WHERE status = 'Pending'"
        with self.database.connect() as connection:
            buried = {
                item: Settled(False, True, words_of(reason)) for item, reason in connection.execute(text(letters))
            }
            done = {item: Settled(is_done=True) for (item,) in connection.execute(text(succeeded))}
        return buried | done

    def resume(self, item: str) -> None:
        app = self.declared(lambda item, context: None)
        [letter] = [letter for letter in app.dead_letters.page().items if letter.correlation_id == item]
        app.redrive.retry(letter, actor="test")


class Jobs(Queued):
    """One job for each item."""

    name = "job"

    def add(self, items: Sequence[str]) -> None:
        [job] = self.declared(lambda item, context: None).jobs.definitions
        for item in items:
            job.options(correlation_id=item).enqueue(item=item)

    def declared(self, handle: Handle, *, is_async: bool = False) -> Holdfast:
        app = self.app()

        def cell(context: Any, item: str) -> None:
            handle(item, context)

        async def cell_async(context: Any, item: str) -> None:
            await handle(item, context)

        app.job(
            "cells",
            name="cell",
            max_attempts=TRIES,
            retry_base_seconds=0.001,
            retry_max_seconds=0.001,
            lease_seconds=self.lease_seconds,
            max_seconds=self.limit_seconds,
        )(cell_async if is_async else cell)
        return app


class Engines(Queued):
    """One message for each item."""

    name = "engine"

    def add(self, items: Sequence[str]) -> None:
        app = self.declared(lambda item, context: None)
        for item in items:
            app.engines.send("cells", {"item": item}, correlation_id=item)

    def declared(self, handle: Handle, *, is_async: bool = False) -> Holdfast:
        app = self.app()

        def cell(context: Any, message: Any) -> None:
            handle(message.payload["item"], context)

        async def cell_async(context: Any, message: Any) -> None:
            await handle(message.payload["item"], context)

        app.engine(
            "cells",
            operation="cell",
            max_retry_attempts=TRIES + 1,  # n means n - 1 executions
            retry_policy=AT_ONCE,
            visibility_seconds=self.lease_seconds,
            concurrency=8,
            poll_seconds=0.02,
        )(cell_async if is_async else cell)
        return app


@contextmanager
def running(app: Holdfast, **options: Any) -> Iterator[None]:
    """Run an application beside the block."""
    failures: list[BaseException | None] = []

    def run() -> None:
        failures.append(failure_of(lambda: app.run(handle_signals=False, **options)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():
            app.stop()
            thread.join(0.05)
    assert failures == [None]


def failure_of(act: Callable[[], object]) -> BaseException | None:
    """Return the error of Holdfast's that something raised, None when it raised none."""
    try:
        act()
    except DbError as error:
        return error
    return None


_KINDS: tuple[Callable[..., Workload], ...] = (Triggers, Jobs, Processors, Engines)
WORKLOADS: dict[str, Callable[..., Workload]] = dict(
    zip(("trigger", "job", "processor", "engine"), _KINDS, strict=True)
)
if not ENGINES_HAVE_TRANSACTIONS:
    del WORKLOADS["engine"]
