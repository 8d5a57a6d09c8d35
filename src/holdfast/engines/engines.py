"""An application's engines: what is declared, what asks them for something, and what runs them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from sqlalchemy.engine import Connection, Engine

from ..core.clock import Clock
from ..core.errors import ConfigurationError, Conflict, DbError, LeaseConflictError, MessageError, StateStoreError
from ..core.handler_forms import is_generator
from ..core.retry import RetryPolicy
from ..core.schedule import Schedule
from ..core.telemetry import MetricsCollector
from ..jobs.stores.base import SqlJobStore
from ..records.dead_letters import DeadLetter, DeadLetters, LetterFilter, LetterStatus
from ..records.history import History, SuccessKey
from ..records.schema import PUBLISHER
from ..runtime.housekeeping import Chore
from ..runtime.leased_part import LeasedWork
from ..state.store import StateStore
from .claimed import ClaimedMessages, EngineHandler
from .definition import LONGEST_INVISIBLE_SECONDS, USUAL_RETRIES, EngineDefinition, EngineSettings, operation_of
from .flow import EngineFlow, Outcome
from .lookups import SuccessLookups
from .messages import Defaults, EngineMessage, parse
from .operations.in_process import InProcess
from .operations.protocol import Operation
from .queued import PoisonedDelivery, QueuedDelivery
from .queues.copies import OURS
from .queues.database import DatabaseQueues
from .queues.embedded import EmbeddedQueue
from .queues.hosted import HostedQueue, hosted_message
from .queues.protocol import EngineQueue, EngineQueues, MissingQueueError, SendingQueue
from .registry import Registry
from .registry_shape import DEFAULT_LOCK_SECONDS
from .retrying import EngineHome, SteppedRetries, new_message_id
from .singletons import Singletons
from .table_records import TableRecords
from .tables.places import TablePlaces
from .telemetry import EngineTelemetry
from .timers import TimerRunner
from .worker import EngineWork, EngineWorker

MOST_EMBEDDED_BYTES = 1024 * 1024
_DRAIN_SECONDS = 10.0
_SWEEP_SECONDS = 60.0
_COUNT_SECONDS = 60.0
_DRAINED_AT_ONCE = 32
_POISON_VISIBILITY_SECONDS = 60.0
_HUB_STOP_SECONDS = 5.0


class DurableOperations(Protocol):
    """What runs operations that are orchestrations, such as ``holdfast.durable.DurableTasks``."""

    def operation(
        self, engine: str, orchestrator: Callable[..., Any], *, is_singleton: bool, timeout_seconds: float | None
    ) -> Operation:
        """Return what runs an orchestrator."""
        ...

    def start(self) -> None:
        """Begin to run orchestrators and activities here."""
        ...

    def stop(self) -> None:
        """Stop that."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlaces:
    """Where the engines of an application keep things. Nothing connects until something is asked for."""

    database: Callable[[], Engine]
    queues: EngineQueues
    tables: TablePlaces
    leases: Callable[[], StateStore]
    registry: Callable[[], Registry]
    durable: DurableOperations | None = None


class Engines:
    """The engines of one application."""

    def __init__(self, places: EnginePlaces, *, clock: Clock, metrics: MetricsCollector | None = None) -> None:
        self._places = places
        self._clock = clock
        self._telemetry = EngineTelemetry(metrics, clock)
        self._declared: dict[str, dict[str, EngineDefinition]] = {}
        self._has_orchestrations = False

    @property
    def declared(self) -> Mapping[str, Mapping[str, EngineDefinition]]:
        """Return the declared operations, by engine and operation."""
        return self._declared

    # Declaring

    def engine(
        self,
        name: str,
        *,
        queue: str | None = None,
        operation: str | None = None,
        singleton: bool = False,
        max_retry_attempts: int = 5,
        schedule: str | None = None,
        timezone: str = "UTC",
        visibility_seconds: float = 30.0,
        retry_policy: RetryPolicy = USUAL_RETRIES,
        conflict_seconds: float = 5.0,
        locks_registry: bool = True,
        lock_seconds: float = DEFAULT_LOCK_SECONDS,
        timeout_seconds: float | None = None,
        concurrency: int = 4,
        poll_seconds: float = 0.5,
    ) -> Callable[[Callable[..., Any]], EngineDefinition]:
        """Make the decorated function an operation of an engine: ``def op(context, message)``.

        A function with ``yield`` is an orchestration, and runs on the task hub given to ``Holdfast(durable=…)``.

        Args:
            name: the engine, which its dead letters and its history are kept under.
            queue: the engine's queue, ``{name}-queue`` when left out.
            operation: what history calls it, the function's name when left out. An engine may have several; messages
                that name none are for the first.
            singleton: only one execution for each instance id at a time, with the registry locked: 409 for others.
            max_retry_attempts: a message that was dequeued so often goes to the dead letters instead of being
                executed: n means n - 1 executions.
            schedule: a cron expression, at whose slots the engine sends itself a message.
            timezone: the zone of the schedule.
            visibility_seconds: how long after its worker's death a message comes again.
            retry_policy: how long a message waits after each failure.
            conflict_seconds: how long it waits after a 409, which is not counted.
            locks_registry: False for a singleton that leaves the registry alone.
            lock_seconds: how long after its death a singleton keeps the registry locked against others.
            timeout_seconds: how long an orchestration may take.
            concurrency: how many messages a worker executes at a time.
            poll_seconds: how long to wait when a queue in Azure is empty.

        Raises:
            ConfigurationError: the declaration is wrong.
        """
        if callable(name):
            raise ConfigurationError('Write @hf.engine("name") with a name: its dead letters are kept under it.')
        if not isinstance(retry_policy, RetryPolicy):
            raise ConfigurationError(f"Engine '{name}': retry_policy={retry_policy!r:.80} must be a RetryPolicy(…).")

        if schedule is not None and not isinstance(schedule, str):
            raise ConfigurationError(f"Engine '{name}': schedule={schedule!r:.80} must be a cron expression.")

        def register(handler: Callable[..., Any]) -> EngineDefinition:
            given: object = handler
            if not callable(given) or inspect.isasyncgenfunction(given):
                raise ConfigurationError(f"Engine '{name}': {handler!r:.80} is no function that can be an operation.")
            settings = EngineSettings(
                queue=f"{name}-queue" if queue is None else queue,
                operation=getattr(handler, "__name__", "run") if operation is None else operation,
                singleton=singleton,
                max_retry_attempts=max_retry_attempts,
                visibility_seconds=visibility_seconds,
                retry_policy=retry_policy,
                conflict_seconds=conflict_seconds,
                locks_registry=locks_registry,
                lock_seconds=lock_seconds,
                concurrency=concurrency,
                poll_seconds=poll_seconds,
                schedule=None if schedule is None else Schedule(f"engine '{name}'", schedule, timezone),
            )
            run = self._operation(name, handler, is_singleton=singleton, timeout_seconds=timeout_seconds)
            definition = EngineDefinition(name, handler, settings, run, self.send)
            self._add(definition)
            return definition

        return register

    def _operation(
        self, name: str, handler: Callable[..., Any], *, is_singleton: bool, timeout_seconds: float | None
    ) -> Operation:
        durable = self._places.durable
        if not is_generator(handler):
            if timeout_seconds is not None:
                raise ConfigurationError(
                    f"Engine '{name}': timeout_seconds is for orchestrations. A function cannot be stopped from "
                    "outside: look at context.lease_lost, or bound what it waits for."
                )
            return InProcess(handler)
        if durable is None:
            raise ConfigurationError(
                f"Engine '{name}': a function with 'yield' is an orchestration and needs a task hub. Pass "
                "Holdfast(durable=DurableTasks(…)) from holdfast.durable, or remove the yield."
            )
        self._has_orchestrations = True
        return durable.operation(name, handler, is_singleton=is_singleton, timeout_seconds=timeout_seconds)

    def _add(self, definition: EngineDefinition) -> None:
        name, settings = definition.name, definition.settings
        for other, operations in self._declared.items():
            queue = next(iter(operations.values())).settings.queue
            if other != name and queue in (settings.queue, f"{settings.queue}-poison", _unpoisoned(settings.queue)):
                raise ConfigurationError(
                    f"The engines '{other}' and '{name}' both want queue '{queue}', or what is moved out of it. Give "
                    "each a queue of its own."
                )
            if other == name and queue != settings.queue:
                raise ConfigurationError(
                    f"The operations of engine '{name}' want two queues, '{queue}' and '{settings.queue}'. An engine "
                    "has one."
                )
        operations = self._declared.setdefault(name, {})
        if settings.operation in operations:
            raise ConfigurationError(
                f"Engine '{name}' has two operations named '{settings.operation}'. Pass operation=… to one of them."
            )
        operations[settings.operation] = definition

    # Asking for something

    def send(
        self,
        engine: str,
        payload: Any = None,
        *,
        operation: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        instance_id: str | None = None,
        causation_id: str | None = None,
        others: Mapping[str, Any] | None = None,
        delay_seconds: float = 0.0,
        connection: Connection | None = None,
    ) -> EngineMessage:
        """Send an engine a message, and return it as it was sent.

        Args:
            engine: a declared engine.
            payload: anything that is JSON.
            operation: one of the engine's; its first when left out.
            message_id: a new one when left out.
            correlation_id: the piece of business that it is about: an operation that has succeeded for it is not
                executed again. A new one when left out.
            instance_id: what it is about, ``publisher`` when left out. Singletons are one for each instance.
            causation_id: the message that led to this one.
            others: further fields, kept as they are.
            delay_seconds: how long it waits before it is delivered.
            connection: the caller's transaction, to send in it; the embedded queue only.

        Raises:
            NotFoundError: there is no such engine or operation.
            MessageError: the message cannot be sent as it is.
            Conflict: a message with that id waits already (where the queue can tell); nothing was sent.
        """
        wanted = operation_of(self._declared, engine, operation).settings.operation
        _check_delay(delay_seconds)
        if reserved := [name for name in others or {} if name.startswith(OURS)]:
            raise MessageError(f"The message's field {reserved[0]!r:.80} starts with '{OURS}', as only ours do.")
        message = EngineMessage(
            message_id=new_message_id() if message_id is None else message_id,
            correlation_id=new_message_id() if correlation_id is None else correlation_id,
            engine=engine,
            operation=wanted,
            payload=payload,
            instance_id=PUBLISHER if instance_id is None else instance_id,
            enqueued_at=self._clock.now(),
            causation_id=causation_id,
            others=others or {},
        )
        body = _rendered(message)
        parse(body, Defaults(message.message_id, engine, wanted))
        self._send(self.queue(engine), body, message.message_id, delay_seconds, connection)
        return message

    def _send(
        self, queue: SendingQueue, body: str, message_id: str, delay_seconds: float, connection: Connection | None
    ) -> None:
        if isinstance(queue, EmbeddedQueue):
            if len(body.encode()) > MOST_EMBEDDED_BYTES:
                raise MessageError(
                    f"Message '{message_id}' has {len(body.encode()):,} bytes, and a queue takes at most "
                    f"{MOST_EMBEDDED_BYTES:,}. Store large data elsewhere and send where it is."
                )
            if not queue.add(body, message_id=message_id, delay_seconds=delay_seconds, connection=connection).is_new:
                raise Conflict(f"A message with the id '{message_id}' waits in queue '{queue.name}' already.")
        elif connection is not None:
            raise ConfigurationError(
                f"Queue '{queue.name}' is not in the database, so a message cannot be part of a transaction there. "
                "Append to the outbox instead, and let a processor send it."
            )
        else:
            queue.send(body, message_id=message_id, delay_seconds=delay_seconds)

    def queue(self, engine: str) -> SendingQueue:
        """Return the queue of a declared engine.

        Raises:
            NotFoundError: there is no such engine.
        """
        settings = self._first(engine).settings
        return self._places.queues.queue(settings.queue, settings.visibility_seconds)

    def _first(self, engine: str) -> EngineDefinition:
        return operation_of(self._declared, engine)

    # Running

    def flow(self, engine: str) -> EngineFlow:
        """Return what takes the messages of an engine through their steps.

        Raises:
            NotFoundError: there is no such engine.
        """
        first = self._first(engine)
        others = [item for item in self._declared[engine].values() if item is not first]
        exclusive = Singletons(self._places.leases(), self._places.registry(), clock=self._clock)
        return EngineFlow(
            first, first.settings.queue, self._records(), clock=self._clock, others=others, exclusive=exclusive
        )

    def _records(self) -> TableRecords:
        tables = self._places.tables.of_engines()
        return TableRecords(tables.letters, tables.history)

    def handle(self, engine: str, message: Any) -> Outcome:
        """Take a message through its steps that a host holds: call this in a queue-triggered Azure Function.

        When it returns, the host deletes the message. When it raises, the host lets it come again, counted.

        Args:
            engine: the engine whose queue the function listens to.
            message: the ``azure.functions.QueueMessage``.

        Raises:
            HandlerError: the operation failed; let it through.
        """
        with self._telemetry.delivery(engine) as told:
            queue, received = HostedQueue(self.queue(engine)), hosted_message(message, self._clock.now())
            delivery = QueuedDelivery(queue, received, self._records(), self._clock)
            told.outcome = self.flow(engine).handle(delivery)
        return told.outcome

    async def handle_async(self, engine: str, message: Any) -> Outcome:
        """Do what ``handle`` does on a thread, from an ``async def`` function."""
        return await asyncio.to_thread(self.handle, engine, message)

    def tick(self, engine: str) -> int:
        """Send what the schedules of an engine are due; call this in a timer-triggered Azure Function.

        Returns how many messages were sent; 0 when another worker is at it.

        Raises:
            NotFoundError: there is no such engine.
        """
        self._first(engine)
        sent = 0
        for runner in self._timers(engine):
            try:
                with runner.leased() as lease:
                    sent += runner.process_batch(lease).delivered
            except LeaseConflictError:
                continue
        return sent

    def drain_poison(self, engine: str) -> int:
        """Turn what a host moved to ``<queue>-poison`` into dead letters; return how many messages were taken there.

        Raises:
            NotFoundError: there is no such engine.
        """
        poison = self._places.queues.poison(self._first(engine).settings.queue)
        if poison is None:
            return 0
        flow, drained = self.flow(engine), 0
        with suppress(MissingQueueError):  # the host makes it when it needs it
            while received := poison.receive(_DRAINED_AT_ONCE, _POISON_VISIBILITY_SECONDS):
                for message in received:
                    flow.give_up(PoisonedDelivery(poison, message, self._records(), self._clock))
                drained += len(received)
        return drained

    def handlers(self) -> list[EngineHandler]:
        """Return the engines as the jobs' worker runs them: those whose queues are in the database."""
        queues = self._places.queues
        if not isinstance(queues, DatabaseQueues):
            return []
        lookups = self._lookups(queues.store)
        return [self._handler(name, queues, lookups) for name in self._declared]

    def _handler(self, name: str, queues: DatabaseQueues, lookups: SuccessLookups) -> EngineHandler:
        settings = self._first(name).settings
        messages = ClaimedMessages(
            name,
            self.flow(name),
            queues.store,
            lookups,
            self._records(),
            is_one_database=self._places.tables.are_in_database,
            concurrency=self._concurrency(name),
            telemetry=self._telemetry,
        )
        return EngineHandler(queues.queue(settings.queue, settings.visibility_seconds).topic, messages)

    def _lookups(self, store: SqlJobStore) -> SuccessLookups:
        if self._places.tables.are_in_database:
            return SuccessLookups(History(store.engine).succeeded_of, self._clock)
        return SuccessLookups(self._succeeded_elsewhere, self._clock, most_ahead=0)  # each is a request of its own

    def _succeeded_elsewhere(self, keys: Collection[SuccessKey]) -> set[SuccessKey]:
        history = self._places.tables.of_engines().history
        return {key for key in keys if history.succeeded(*key) is not None}

    def _concurrency(self, name: str) -> int:
        return max(item.settings.concurrency for item in self._declared[name].values())

    def worker(self, stop: threading.Event) -> EngineWorker:
        """Return a worker for engines whose queues are not in the database."""
        works = []
        for name in self._declared:
            settings, queue = self._first(name).settings, self.queue(name)
            if isinstance(queue, EngineQueue):
                works.append(
                    EngineWork(
                        name,
                        queue,
                        self.flow(name),
                        self._records(),
                        self._concurrency(name),
                        settings.visibility_seconds,
                        settings.poll_seconds,
                    )
                )
        return EngineWorker(works, stop, telemetry=self._telemetry, clock=self._clock)

    @property
    def are_in_database(self) -> bool:
        """Return whether the queues are in the database, so that the jobs' worker takes their messages."""
        return isinstance(self._places.queues, DatabaseQueues)

    def chores(self) -> list[Chore]:
        """Return what some process must do now and then for the queues and the dead letters."""
        if not self._declared:
            return []
        found = []
        if any(self._places.queues.poison(self._first(name).settings.queue) is not None for name in self._declared):
            found.append(Chore("draining poison queues", self._drain_all, _DRAIN_SECONDS))
        if self.home is None:
            found.append(Chore("finishing retries of dead letters", self._sweep, _SWEEP_SECONDS))
        return [*found, Chore("counting Pending dead letters", self._count_pending, _COUNT_SECONDS)]

    def _sweep(self) -> None:
        self.retries.sweep()

    def _drain_all(self) -> None:
        for name in self._declared:
            try:
                self.drain_poison(name)
            except DbError as error:
                self._telemetry.broke(name, error)

    def _count_pending(self) -> None:
        letters = self._places.tables.of_engines().letters
        for name in self._declared:
            count = letters.count(LetterFilter(engine=name, status=LetterStatus.PENDING))
            if count is not None:
                self._telemetry.pending(name, count)

    def timers(self) -> list[LeasedWork]:
        """Return what sends the messages of timer engines."""
        return [
            LeasedWork(runner.title, make=partial(_same, runner), check=partial(self._check, name))
            for name in self._declared
            for runner in self._timers(name)
        ]

    def _timers(self, engine: str) -> list[TimerRunner]:
        runners = []
        for operation, item in self._declared[engine].items():
            if item.settings.schedule is not None:
                send = _sender(self, engine, operation)
                leases = self._places.leases()
                runners.append(TimerRunner(engine, operation, item.settings.schedule, send, leases, self._clock))
        return runners

    @contextmanager
    def task_hub(self) -> Iterator[None]:
        """Run orchestrators and activities here while the block runs, where there are any."""
        durable = self._places.durable
        if durable is None or not self._has_orchestrations:
            yield
            return
        durable.start()
        try:
            yield
        finally:
            stopping = threading.Thread(target=durable.stop, name="holdfast-hub-stop", daemon=True)
            stopping.start()
            stopping.join(_HUB_STOP_SECONDS)  # what still runs is given to another worker by the hub

    def make_queues(self) -> None:
        """Create the queues that are missing."""
        for name in self._declared:
            self._places.queues.make(self._first(name).settings.queue)

    def check(self) -> None:
        """Look whether the queues and the tables of the declared engines are there.

        Raises:
            ConfigurationError: the first that is not.
        """
        for fault in self.faults().values():
            raise fault

    def faults(self) -> dict[str, DbError]:
        """Return what is wrong with declared engines, by title."""
        faults: dict[str, DbError] = {}
        for name in self._declared:
            try:
                self._check(name)
            except (ConfigurationError, StateStoreError) as error:
                faults[f"Engine '{name}'"] = error
        return faults

    def _check(self, name: str) -> None:
        self._places.queues.check(self._first(name).settings.queue)
        tables = self._places.tables.of_engines()
        tables.letters.page(limit=1)
        tables.history.page(limit=1)

    # Putting dead letters back

    @property
    def home(self) -> EngineHome | None:
        """Return what puts dead letters back in their own transaction; None when their queue is elsewhere."""
        queues = self._places.queues
        if not self._places.tables.are_in_database or not isinstance(queues, DatabaseQueues):
            return None
        return EngineHome(
            DeadLetters(self._places.database()),
            lambda letter: queues.queue(letter.original_queue, self._visibility_of(letter)),
            is_declared=self._declared.__contains__,
        )

    @property
    def retries(self) -> SteppedRetries:
        """Return what puts dead letters back step by step."""
        queues, tables = self._places.queues, self._places.tables.of_engines()
        return SteppedRetries(
            tables.letters,
            tables.history,
            lambda letter: queues.queue(letter.original_queue, self._visibility_of(letter)),
            is_declared=self._declared.__contains__,
        )

    def _visibility_of(self, letter: DeadLetter) -> float:
        operations = self._declared.get(letter.engine)
        return next(iter(operations.values())).settings.visibility_seconds if operations else 30.0


def _same(runner: TimerRunner) -> TimerRunner:
    return runner


def _sender(engines: Engines, engine: str, operation: str) -> Callable[[str, datetime], object]:
    def send(message_id: str, slot: datetime) -> None:
        payload = {"scheduledFor": slot.isoformat()}
        with suppress(Conflict):  # a worker that died had sent it
            engines.send(engine, payload, operation=operation, message_id=message_id, correlation_id=message_id)

    return send


def _check_delay(seconds: object) -> None:
    if not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_INVISIBLE_SECONDS:
        raise MessageError(f"delay_seconds={seconds!r:.40} must be a number from 0 to 604800 (7 days).")


def _unpoisoned(queue: str) -> str:
    """Return the queue whose poison a queue would hold."""
    return queue.removesuffix("-poison")


def _rendered(message: EngineMessage) -> str:
    try:
        return message.rendered()
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"The message's payload is not JSON: {error}.") from error
