"""An application's engines: what is declared, what asks them for something, and what runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy.engine import Connection, Engine

from ..core.clock import Clock
from ..core.errors import (
    ConfigurationError,
    Conflict,
    DbError,
    HandlerError,
    LeaseConflictError,
    MessageError,
    StateStoreError,
)
from ..core.handler_forms import is_generator
from ..core.keywords import picked, require_known, takes
from ..core.moments_ahead import MomentsAhead
from ..core.telemetry import MetricsCollector
from ..database.rights import require_rights
from ..database.row_security import Rights
from ..jobs.model import JobId
from ..lease.held_lease import HeldLease
from ..lease.store import StateStore
from ..records.dead_letters import DeadLetter, DeadLetters, LetterFilter, LetterStatus
from ..records.history import History, SuccessKey
from ..records.location import TableLocations
from ..records.schema import PUBLISHER
from ..runtime.housekeeping import Chore
from ..runtime.leased_part import LeasedWork
from .claimed import ClaimedMessages, EngineHandler
from .definition import LONGEST_INVISIBLE_SECONDS, EngineDeclaration, EngineDefinition, EngineSettings, operation_of
from .lookups import SuccessLookups
from .messages import Defaults, EngineMessage, MessageIds, parse
from .operations.in_process import InProcess
from .operations.protocol import Operation
from .queue_delivery import PoisonedDelivery, QueuedDelivery
from .queues.embedded import DatabaseQueues, EmbeddedQueue
from .queues.hosted import HostedQueue, hosted_message
from .queues.protocol import EngineQueue, EngineQueues, MissingQueueError, SendingQueue
from .queues.redelivery_marks import OURS
from .registry import EngineTablesConfig, Registry
from .retrying import EngineRedrive, LetterOwners, SteppedRetries, new_message_id
from .rights import RightsOnce, rights_for
from .runner import EngineFlow, Outcome, scope_of
from .singletons import Singletons
from .store import TableRecords
from .telemetry import EngineTelemetry
from .timers import MissedSlots, Timer, TimerRunner
from .twins import Twins
from .worker import EngineWork, EngineWorker

if TYPE_CHECKING:
    from typing import Unpack

    from .operations.durable_functions import DurableFunctions
    from .operations.durable_tasks import DurableTasks
    from .options import EngineOptions, IdOptions

MOST_EMBEDDED_BYTES = 1024 * 1024
_DRAIN_SECONDS = 10.0
_SWEEP_SECONDS = 60.0
_COUNT_SECONDS = 60.0
_DRAINED_AT_ONCE = 32
_POISON_VISIBILITY_SECONDS = 60.0
_HUB_STOP_SECONDS = 5.0


DurableOperations: TypeAlias = "DurableTasks | DurableFunctions"
"""What runs operations that are orchestrations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResources:
    """Where the engines of an application keep things. Nothing connects until something is asked for.

    ``has_state`` says whether leases and the registry are in the database.
    """

    database: Callable[[], Engine]
    queues: EngineQueues
    tables: TableLocations[EngineTablesConfig]
    leases: Callable[[], StateStore]
    registry: Callable[[], Registry]
    durable: DurableOperations | None = None
    default_instance_id: str = PUBLISHER
    app_name: str = "default"
    has_state: bool = False


class Engines:
    """The engines of one application."""

    def __init__(self, resources: EngineResources, *, clock: Clock, metrics: MetricsCollector | None = None) -> None:
        self._resources = resources
        self._clock = clock
        self._ahead = MomentsAhead(clock)
        self._telemetry = EngineTelemetry(metrics, clock)
        self._declared: dict[str, dict[str, EngineDefinition]] = {}
        self._has_orchestrations = False
        self._granted = RightsOnce()

    @property
    def default_instance_id(self) -> str:
        """Return the instance of messages that name none."""
        return self._resources.default_instance_id

    @property
    def declared(self) -> Mapping[str, Mapping[str, EngineDefinition]]:
        """Return the declared operations, by engine and operation."""
        return self._declared

    # Declaring

    @takes(EngineDeclaration)
    def engine(
        self,
        name: str,
        **options: Unpack[EngineOptions],
    ) -> Callable[[Callable[..., Any]], EngineDefinition]:
        """Make the decorated function an operation of an engine: ``def op(context, message)``.

        A function with ``yield`` is an orchestration, and runs on the task hub given to ``Holdfast(durable=…)``.

        Args:
            name: the engine, which its dead letters and its history are kept under.
            queue: the engine's queue, ``{name}-queue`` when left out.
            operation: what history calls it, the function's name when left out. An engine may have several; messages
                that name none are for the first.
            singleton: only one execution for each instance id at a time, with that instance's registry locked: 409 for
                others. Messages about no instance (``publisher``) lock the application's registry.
            max_retry_attempts: a message that was dequeued so often goes to the dead letters instead of being
                executed: n means n - 1 executions.
            schedule: a cron expression, at whose slots the engine sends itself a message.
            timezone: the zone of the schedule.
            missed: what becomes of slots that could not begin in their time, because of a lock or because nobody was
                there: only the newest is executed; with ``"skip"`` none that is more than a minute late; with
                ``"run-all"`` all of them.
            visibility_seconds: how long after its worker's death a message comes again.
            retry_policy: how long a message waits after each failure.
            conflict_seconds: how long it waits after a 409, which is not counted.
            locks_registry: False for a singleton that leaves the registry alone; ``"application"`` for one that changes
                what is the application's, whatever instance it names.
            lock_seconds: how long after its death a singleton keeps the registry locked against others.
            timeout_seconds: how long an orchestration may take.
            concurrency: how many messages a worker executes at a time.
            poll_seconds: how long to wait when a queue in Azure is empty.

        Raises:
            ConfigurationError: the declaration is wrong.
        """
        require_known("engine", options, EngineDeclaration)
        declaration = picked(EngineDeclaration, options)
        declaration.check(name)

        def register(handler: Callable[..., Any]) -> EngineDefinition:
            settings = declaration.settings(name, handler, self.default_instance_id)
            run = self._operation(name, handler, settings, declaration.timeout_seconds)
            definition = EngineDefinition(name, handler, settings, run, self.send)
            self._add(definition)
            return definition

        return register

    def _operation(
        self, name: str, handler: Callable[..., Any], settings: EngineSettings, timeout_seconds: float | None
    ) -> Operation:
        durable = self._resources.durable
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
        return durable.operation(name, handler, is_singleton=settings.singleton, timeout_seconds=timeout_seconds)

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

    @takes(MessageIds)
    def send(
        self,
        engine: str,
        payload: Any = None,
        *,
        operation: str | None = None,
        others: Mapping[str, Any] | None = None,
        delay_seconds: float = 0.0,
        connection: Connection | None = None,
        **ids: Unpack[IdOptions],
    ) -> EngineMessage:
        """Send an engine a message, and return it as it was sent.

        Args:
            engine: a declared engine.
            payload: anything that is JSON.
            operation: one of the engine's; its first when left out.
            message_id: a new one when left out.
            correlation_id: the piece of business that it is about: an operation that has succeeded for it is not
                executed again. A new one when left out.
            instance_id: what it is about; the application's ``instance_id`` when left out, else ``publisher``.
                Singletons are one for each instance.
            causation_id: the message that led to this one.
            others: further fields, kept as they are.
            delay_seconds: how long it waits before it is delivered.
            connection: the caller's transaction, to send in it; the embedded queue only.

        Raises:
            NotFoundError: there is no such engine or operation.
            MessageError: the message cannot be sent as it is.
            Conflict: a message with that id waits already (where the queue can tell); nothing was sent.
        """
        require_known("send", ids, MessageIds)
        given = picked(MessageIds, ids)
        wanted = operation_of(self._declared, engine, operation).settings.operation
        _check_delay(delay_seconds)
        if reserved := [name for name in others or {} if name.startswith(OURS)]:
            raise MessageError(f"The message's field {reserved[0]!r:.80} starts with '{OURS}', as only ours do.")
        message = EngineMessage(
            message_id=new_message_id() if given.message_id is None else given.message_id,
            correlation_id=new_message_id() if given.correlation_id is None else given.correlation_id,
            engine=engine,
            operation=wanted,
            payload=payload,
            instance_id=self.default_instance_id if given.instance_id is None else given.instance_id,
            enqueued_at=self._clock.now(),
            causation_id=given.causation_id,
            others=others or {},
            application=self._resources.app_name,
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

    def require_idle(self, engine: str, operation: str | None = None, instance_id: str | None = None) -> None:
        """Look whether a singleton could start now; only its start makes sure.

        Raises:
            NotFoundError: there is no such engine or operation.
            ConfigurationError: it is no singleton: any number of its executions run side by side.
            AlreadyRunning: an execution is at work (HTTP 409).
            RegistryLocked: another job has the registry's lock (HTTP 409).
        """
        settings = operation_of(self._declared, engine, operation).settings
        if not settings.singleton:
            raise ConfigurationError(
                f"Operation '{settings.operation}' of engine '{engine}' is no singleton, so nothing of it is in the "
                "way of a message. Leave ifRunning out, or declare it with singleton=True."
            )
        scope = scope_of(engine, instance_id or self.default_instance_id, settings, job_id="")
        self._singletons().require_idle(scope)

    def queue(self, engine: str) -> SendingQueue:
        """Return the queue of a declared engine.

        Raises:
            NotFoundError: there is no such engine.
        """
        settings = self._first(engine).settings
        return self._resources.queues.queue(settings.queue, settings.lease_seconds)

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
        records = self._records()
        return EngineFlow(
            first,
            first.settings.queue,
            records,
            clock=self._clock,
            application=self._resources.app_name,
            others=others,
            exclusive=self._singletons(),
            missed=MissedSlots(self._resources.leases(), self._resources.app_name, records.has_succeeded),
        )

    def _singletons(self) -> Singletons:
        return Singletons(self._resources.leases(), self._resources.registry(), clock=self._clock)

    def _records(self) -> TableRecords:
        return TableRecords(self._resources.tables.of_engines)

    def handle(self, engine: str, message: Any) -> Outcome:
        """Take a message through its steps that a host holds: call this in a queue-triggered Azure Function.

        When it returns, the host deletes the message. When it raises, the host lets it come again, counted.

        Args:
            engine: the engine whose queue the function listens to.
            message: the ``azure.functions.QueueMessage``.

        Raises:
            HandlerError: the operation failed, or its end could not be recorded; let it through.
            ConfigurationError: the role could not record its end, so it was not begun; let it through.
        """
        self._require_rights(engine)
        with self._telemetry.delivery(engine) as delivered:
            queue, received = HostedQueue(self.queue(engine)), hosted_message(message, self._clock.now())
            delivery = QueuedDelivery(queue, received, self._records(), self._clock)
            delivered.outcome = self.flow(engine).handle(delivery)
        if delivered.outcome is Outcome.LOST:  # the host would delete what has no end yet
            raise HandlerError(f"Message {received.id} of queue '{queue.name}' was lost while at work and comes again.")
        return delivered.outcome

    async def handle_async(self, engine: str, message: Any) -> Outcome:
        """Do what ``handle`` does on a thread, from an ``async def`` function."""
        return await asyncio.to_thread(self.handle, engine, message)

    def tick(self, engine: str) -> int:
        """Send what the schedules of an engine are due; call this in a timer-triggered Azure Function.

        Returns how many messages were sent; 0 when another worker is at it.

        Raises:
            NotFoundError: there is no such engine.
            ConfigurationError: the role could not keep the place of the timer; nothing was sent.
        """
        self._require_rights(engine)
        sent = 0
        for runner in self._timers(engine):
            try:
                with runner.leased() as lease:
                    sent += _sent_by(runner, lease)
            except LeaseConflictError:
                continue
        return sent

    def drain_poison(self, engine: str, found: Callable[[], object] = lambda: None) -> int:
        """Turn what a host moved to ``<queue>-poison`` into dead letters; return how many messages were taken there.

        ``found`` is called once before the first of them is touched; what it raises leaves all of them there.

        Raises:
            NotFoundError: there is no such engine.
            ConfigurationError: the role could not write dead letters; nothing was taken.
        """
        self._require_rights(engine)
        poison = self._resources.queues.poison(self._first(engine).settings.queue)
        if poison is None:
            return 0
        flow, drained = self.flow(engine), 0
        with suppress(MissingQueueError):  # the host makes it when it needs it
            while received := poison.receive(_DRAINED_AT_ONCE, _POISON_VISIBILITY_SECONDS):
                if not drained:
                    found()
                for message in received:
                    flow.give_up(PoisonedDelivery(poison, message, self._records(), self._clock))
                drained += len(received)
        return drained

    def handlers(self) -> list[EngineHandler]:
        """Return the engines as the jobs' worker runs them: those whose queues are in the database."""
        queues = self._resources.queues
        if not isinstance(queues, DatabaseQueues):
            return []
        lookups = self._lookups(queues)
        return [handler for name in self._declared for handler in self._handlers(name, queues, lookups)]

    def _handlers(self, name: str, queues: DatabaseQueues, lookups: SuccessLookups) -> list[EngineHandler]:
        """Return what takes the engine's own messages, and those that older versions sent."""
        settings = self._first(name).settings
        messages = ClaimedMessages(
            name,
            self.flow(name),
            queues.store,
            lookups,
            self._records(),
            is_one_database=self._resources.tables.are_in_database,
            concurrency=self._concurrency(name),
            telemetry=self._telemetry,
        )
        queue = queues.queue(settings.queue, settings.lease_seconds)
        return [EngineHandler(queue.topic, messages, operation) for operation in queues.operations]

    def _lookups(self, queues: DatabaseQueues) -> SuccessLookups:
        store, readers = queues.store, {}
        for name in self._declared:
            settings = self._first(name).settings
            topic = queues.queue(settings.queue, settings.lease_seconds).topic
            readers[topic] = partial(_key_in, self._resources.app_name, name, settings.operation)
        if self._resources.tables.are_in_database:
            twins = Twins(store, queues.operations, readers, History(store.engine).succeeded_of)
            return SuccessLookups(twins.look, self._clock)
        twins = Twins(store, queues.operations, readers, self._succeeded_elsewhere)
        return SuccessLookups(twins.look, self._clock, most_ahead=0)  # each is a request of its own

    def _succeeded_elsewhere(self, keys: Collection[SuccessKey], connection: Connection) -> set[SuccessKey]:
        history = self._resources.tables.of_engines().history
        return {key for key in keys if history.succeeded(*key) is not None}

    def _concurrency(self, name: str) -> int:
        return max(item.settings.concurrency for item in self._declared[name].values())

    def worker(self, stop: threading.Event, faults: Mapping[str, DbError] | None = None) -> EngineWorker:
        """Return a worker for engines whose queues are not in the database; ``faults`` is what is known to be wrong."""
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
                        settings.lease_seconds,
                        settings.poll_seconds,
                        partial(self._check, name),
                        (faults or {}).get(_title(name)),
                    )
                )
        return EngineWorker(works, stop, telemetry=self._telemetry, clock=self._clock)

    @property
    def operations_by_queue(self) -> dict[str, list[str]]:
        """Return what a worker of queues elsewhere can run, for the list of workers."""
        found: dict[str, list[str]] = {}
        for name, operations in self._declared.items():
            found.setdefault(f"queue {self._first(name).settings.queue}", []).extend(operations)
        return {queue: sorted(operations) for queue, operations in found.items()}

    @property
    def are_in_database(self) -> bool:
        """Return whether the queues are in the database, so that the jobs' worker takes their messages."""
        return isinstance(self._resources.queues, DatabaseQueues)

    def chores(self) -> list[Chore]:
        """Return what some process must do now and then for the queues and the dead letters."""
        if not self._declared:
            return []
        found = []
        if any(self._resources.queues.poison(self._first(name).settings.queue) is not None for name in self._declared):
            found.append(Chore("draining poison queues", self._drain_all, _DRAIN_SECONDS))
        if self.redrive is None:
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
        letters = self._resources.tables.of_engines().letters
        for name in self._declared:
            pending = LetterFilter(engine=name, status=LetterStatus.PENDING, application=self._resources.app_name)
            count = letters.count(pending)
            if count is not None:
                self._telemetry.pending(name, count)

    def timers(self, faults: Mapping[str, DbError] | None = None) -> list[LeasedWork]:
        """Return what sends the messages of timer engines; ``faults`` is what is known to be wrong with engines."""
        known = faults or {}
        return [
            LeasedWork(
                runner.title,
                make=partial(_same, runner),
                check=partial(self._check, name),
                fault=known.get(_title(name)),
            )
            for name in self._declared
            for runner in self._timers(name)
        ]

    def _timers(self, engine: str) -> list[TimerRunner]:
        runners, leases = [], self._resources.leases()
        for operation, item in self._declared[engine].items():
            schedule, missed = item.settings.schedule, item.settings.missed
            if schedule is not None:
                timer = Timer(self._resources.app_name, engine, operation, self.default_instance_id)
                send = _sender(self, engine, operation)
                runners.append(TimerRunner(timer, schedule, send, leases, self._clock, self._ahead, missed))
        return runners

    @contextmanager
    def task_hub(self) -> Iterator[None]:
        """Run orchestrators and activities here while the block runs, where there are any."""
        durable = self._resources.durable
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
            self._resources.queues.make(self._first(name).settings.queue)

    def faults(self) -> dict[str, DbError]:
        """Return what is wrong with declared engines, by title."""
        return {_title(name): fault for name, fault in self.faults_by_name().items()}

    def faults_by_name(self) -> dict[str, DbError]:
        """Return what is wrong with declared engines, by name."""
        faults: dict[str, DbError] = {}
        for name in self._declared:
            try:
                self._check(name)
            except (ConfigurationError, StateStoreError) as error:
                faults[name] = error
        return faults

    def _require_rights(self, name: str) -> None:
        """Refuse to begin what could not be recorded, or not be kept from running twice; asked until it is granted."""
        self._granted.require(name, self._resources.database(), self._rights(name))

    def _rights(self, name: str) -> Rights:
        self._first(name)
        return rights_for(
            self._declared[name].values(),
            has_queue=self.are_in_database,
            has_tables=self._resources.tables.are_in_database,
            has_state=self._resources.has_state,
        )

    def _check(self, name: str) -> None:
        require_rights(self._resources.database(), self._rights(name))
        self._resources.queues.check(self._first(name).settings.queue)
        tables = self._resources.tables.of_engines()
        tables.letters.page(limit=1)
        tables.history.page(limit=1)

    # Putting dead letters back

    @property
    def redrive(self) -> EngineRedrive | None:
        """Return what puts dead letters back in their own transaction; None when their queue is elsewhere."""
        queues = self._resources.queues
        if not self._resources.tables.are_in_database or not isinstance(queues, DatabaseQueues):
            return None
        return EngineRedrive(
            DeadLetters(self._resources.database()),
            lambda letter: queues.queue_of_letter(letter, self._visibility_of(letter)),
            self._owners(queues.is_read),
        )

    @property
    def retries(self) -> SteppedRetries:
        """Return what puts dead letters back step by step."""
        queues, tables = self._resources.queues, self._resources.tables.of_engines()
        return SteppedRetries(
            tables.letters,
            tables.history,
            lambda letter: queues.queue(letter.original_queue, self._visibility_of(letter)),
            self._owners(),
        )

    def _owners(self, is_read: Callable[[DeadLetter], bool] = lambda letter: False) -> LetterOwners:
        return LetterOwners(self._resources.app_name, self._declared.__contains__, is_read)

    def _visibility_of(self, letter: DeadLetter) -> float:
        operations = self._declared.get(letter.engine)
        return next(iter(operations.values())).settings.lease_seconds if operations else 30.0


def _key_in(application: str, engine: str, operation: str, job_id: JobId, body: str) -> SuccessKey | None:
    """Return what a message of an engine is about."""
    try:
        return parse(body, Defaults(str(job_id), engine, operation, application=application)).key
    except MessageError:
        return None


def _title(engine: str) -> str:
    return f"Engine '{engine}'"


def _same(runner: TimerRunner) -> TimerRunner:
    return runner


def _sent_by(runner: TimerRunner, lease: HeldLease) -> int:
    """Return how many messages were sent until nothing was due any more."""
    sent, outcome = 0, runner.process_batch(lease)
    while outcome.delivered and not outcome.caught_up:
        sent, outcome = sent + outcome.delivered, runner.process_batch(lease)
    return sent + outcome.delivered


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
