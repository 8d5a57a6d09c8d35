"""An application's processors: what is declared, where each stands, and what runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.engine import Connection, Engine

from ..core.clock import Clock
from ..core.errors import ConfigurationError, DbError, LeaseConflictError, OutboxError, QueryError, WriteError
from ..core.former_names import warn_of_former
from ..core.keywords import require_known, takes
from ..core.retry import RetryPolicy
from ..core.telemetry import MetricsCollector
from ..database.budget import PoolName
from ..database.pools import Pools, use_wal
from ..database.repeating import repeated
from ..database.rights import FOR_PROCESSORS, require_rights
from ..database.row_security import Rights
from ..lease.documents import DocumentStore
from ..lease.store import StateStore
from ..records.database import changing
from ..runtime.housekeeping import Chore
from ..runtime.leased_part import LeasedWork
from .cluster_identity import Cluster
from .definition import Processor, ProcessorSettings, checked_settings
from .housekeeping import OutboxHousekeeping
from .letters import Letters, withdraw
from .lookout import Lookout
from .message import Checkpoint
from .operator import ProcessorOperator
from .pruned import lock_pruned, refusal
from .reader import OutboxReader, Selection
from .runner import PartitionRunner
from .sequencer import LONGEST_LEASE_SECONDS, Sequencer
from .sinks.protocol import Sink, relaying
from .store import CheckpointStore, PartitionId, Place, Role, Status, was_overtaken
from .telemetry import ProcessorTelemetry
from .wake_ups import wake_ups

if TYPE_CHECKING:
    from typing import Unpack

    from .options import ProcessorOptions

LEASES = "holdfast.processors"
_SEQUENCER_POLL_SECONDS = 0.05
_SEQUENCER_REST_SECONDS = 0.2
_LONGEST_REST_SECONDS = 0.5
_LONGEST_REST_SECONDS_IF_WOKEN = 5.0
_DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
_WAIT_SECONDS = 0.02
_RELAY_STOPS = RetryPolicy(max_retries=10_000, base_delay_seconds=0.5, max_delay_seconds=60.0)
_RELAY_LETTERS = RetryPolicy(max_retries=20, base_delay_seconds=0.5, max_delay_seconds=60.0)
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Processors:
    """The processors of one application. Nothing connects until something runs.

    Args:
        pools: the database of the outbox: reading and checkpoints have a pool, and ``context.transaction`` another.
        documents: where leases are kept.
        rights: what the database's role must be able to do.
    """

    def __init__(
        self,
        pools: Pools,
        documents: Callable[[], DocumentStore],
        *,
        clock: Clock,
        metrics: MetricsCollector | None = None,
        retention: timedelta | None = None,
        rights: Rights = FOR_PROCESSORS,
    ) -> None:
        self._rights = rights
        self._pools = pools
        self._documents = documents
        self._clock = clock
        self._telemetry = ProcessorTelemetry(metrics)
        self._retention = retention
        self._processors: dict[tuple[str, int], Processor] = {}
        self._leases: StateStore | None = None

    # Declaring

    @takes(ProcessorSettings, retry_policy=None)
    def processor(
        self,
        processor_id: str,
        **options: Unpack[ProcessorOptions],
    ) -> Callable[[_Handler], _Handler]:
        """Deliver the outbox's messages to the decorated function, ``def`` or ``async def``, in order.

        The function gets a list of messages, or the list and a ``ProcessorContext``.

        Args:
            processor_id: what its checkpoint is kept under, so it should not change.
            start_from: where a processor starts that has no checkpoint yet: ``beginning``, ``end``, a ``Checkpoint``,
                or ``stored``, which refuses to start without one.
            first_kept: the first message that is kept. Where retention has deleted messages, a new processor does not
                start from ``beginning`` unless this names what it begins with.
            types: only messages of these types; all when left out.
            version: a higher one than that in use runs beside it from ``start_from`` on, until it is promoted.
            partitions: how many parts to split the messages into, by key; each has its own lease and checkpoint.
            batch_size: how many messages are handled in one transaction, at most.
            order: ``transaction``: by (transaction, position). ``position``: by position, which keeps the order in
                which writers of the same key held its lock.
            transactional: have the checkpoint commit with what the handler writes through ``context.transaction``.
                False for handlers that write elsewhere: then messages may come again after a crash.
            lease_seconds: how long after its death another instance takes over.
            heartbeat_seconds: how often the lease is extended; a third of it when left out.
            poll_seconds: how long to wait when there is nothing to read.
            retry_policy: how often a failed batch is tried again at once, and how late.
            on_error: what then, and what about a message that was refused for good: ``stop``; ``retry`` for ever;
                ``dead_letter`` for the messages that fail alone, too; ``park``: the same, and later messages of its key
                wait behind it.

        Raises:
            ConfigurationError: the declaration is wrong.
        """
        require_known("processor", options, ProcessorSettings)
        settings = checked_settings(processor_id, options)

        def register(handler: _Handler) -> _Handler:
            self._add(Processor(processor_id, handler, settings))
            return handler

        return register

    @takes(ProcessorSettings, retry_policy=None)
    def relay(self, processor_id: str, sink: Sink, **options: Unpack[ProcessorOptions]) -> None:
        """Send the outbox's messages to another system, in order, at least once, with their message ids.

        ``options`` are those of ``processor``. The checkpoint moves over what the sink has delivered, also when it
        fails in the midst of a batch. A receiver that does not answer is tried for about a week before the relay stops;
        with ``on_error="dead_letter"`` or ``"park"`` a message that fails is tried for about a quarter of an hour, and
        one that is refused for good once.
        """
        if isinstance(sink, type) or not callable(getattr(sink, "send", None)):
            raise ConfigurationError(
                f"Relay '{processor_id}': {sink!r} is no sink. Pass an object with send(messages), as WebhookSink is."
            )
        if options.get("transactional"):
            raise ConfigurationError(
                f"Relay '{processor_id}': transactional=True cannot hold, since the other system is in no transaction."
            )
        patience = _RELAY_LETTERS if options.get("on_error") in ("dead_letter", "park") else _RELAY_STOPS
        options.setdefault("retry_policy", patience)
        options["transactional"] = False
        self.processor(processor_id, **options)(relaying(sink))

    def _add(self, processor: Processor) -> None:
        key = (processor.id, processor.version)
        if key in self._processors:
            raise ConfigurationError(
                f"There are two processors '{processor.id}' of version {processor.version}. Give one another id, or a "
                "higher version to run beside the other."
            )
        self._processors[key] = processor

    @property
    def declared(self) -> list[Processor]:
        """Return the declared processors."""
        return list(self._processors.values())

    def get(self, processor_id: str, version: int | None = None) -> Processor:
        """Return a declared processor, its highest version when none is named.

        Raises:
            ConfigurationError: there is none.
        """
        found = [item for item in self.declared if item.id == processor_id and version in (None, item.version)]
        if not found:
            known = ", ".join(f"{item.id} v{item.version}" for item in self.declared) or "none"
            raise ConfigurationError(f"There is no processor '{processor_id}' here. Declared: {known}.")
        return max(found, key=lambda item: item.version)

    # Where they stand

    @property
    def checkpoints(self) -> CheckpointStore:
        """Return where processors stand."""
        return CheckpointStore(self.engine)

    @property
    def engine(self) -> Engine:
        """Return the engine for reading and checkpoints, which handlers do not use."""
        return self._engine(PoolName.WORK)

    @property
    def leases(self) -> StateStore:
        """Return where leases are kept: one document for each partition, for all applications of a database."""
        if self._leases is None:
            self._leases = StateStore(self._documents(), app_name=LEASES, clock=self._clock)
        return self._leases

    @property
    def operator(self) -> ProcessorOperator:
        """Return what people do: list, promote, stop, resume, rebuild, forget."""
        return ProcessorOperator(self.engine, self.checkpoints, self.leases)

    @property
    def by_hand(self) -> ProcessorOperator:
        """Return ``operator``, under its former name."""
        warn_of_former("'Processors.by_hand'", "operator")
        return self.operator

    def _engine(self, name: PoolName) -> Engine:
        engine = self._pools.engine(name)
        if engine.dialect.name not in _DIALECTS:
            raise ConfigurationError(
                f"Processors are not there for {engine.dialect.name}. Use PostgreSQL, MariaDB, MySQL or SQLite."
            )
        if engine.dialect.name == "sqlite":
            use_wal(engine)
        return engine

    def faults(self) -> dict[str, DbError]:
        """Return what is wrong with declared processors, by title."""
        return self._faults_of(self._check)

    def _check(self, processor: Processor) -> None:
        require_rights(self.engine, self._rights)
        _check_known(processor, self.checkpoints.of(processor.id))

    def register(self) -> None:
        """Write down every declared processor that is not known yet.

        Raises:
            ConfigurationError: what is stored does not fit what is declared.
        """
        for fault in self.register_each().values():
            raise fault

    def register_each(self) -> dict[str, DbError]:
        """Write down every declared processor that is not known yet; return what is wrong with others, by title."""
        return self._faults_of(self._register)

    def _faults_of(self, step: Callable[[Processor], None]) -> dict[str, DbError]:
        """Take a step with each processor, earlier versions first; return the errors."""
        faults: dict[str, DbError] = {}
        for processor in sorted(self.declared, key=lambda item: item.version):
            try:
                step(processor)
            except (ConfigurationError, QueryError, WriteError) as error:
                faults[processor.title] = error
        return faults

    def _register(self, processor: Processor) -> None:
        """Write a processor down if it is not known yet; again when others, who do the same, were in the way."""
        require_rights(self.engine, self._rights)
        repeated(partial(self._register_once, processor), is_passing=was_overtaken)

    def _register_once(self, processor: Processor) -> None:
        known = self.checkpoints.of(processor.id)
        _check_known(processor, known)
        there = {place.id for place in known}
        if there.issuperset(processor.partition_ids):
            return
        new = self._new_places(processor, [place for place in known if place.id.version != processor.version])
        missing = [place for place in new if place.id not in there]
        begins = missing[0].checkpoint is None
        if begins and not any(place.version == processor.version for place in there):
            with changing(self.engine) as connection:
                self._require_everything(connection, processor)
                withdraw(connection, processor.id, processor.version, "registration")
        is_at_end = processor.settings.start_from == "end"
        check = None if is_at_end and not begins else partial(self._require_everything, processor=processor)
        self.checkpoints.register(missing, check)

    def _require_everything(self, connection: Connection, processor: Processor) -> None:
        """Refuse to begin where messages are gone, unless the declaration names the first one kept."""
        reader, accepted = self._reader(processor, processor.partition_ids[0]), processor.settings.first_kept
        first, start = reader.first(connection), processor.settings.start_from
        if isinstance(start, Checkpoint) and first is not None and reader.in_order(start) >= first:
            return
        why = refusal(lock_pruned(connection), first, None if accepted is None else reader.in_order(accepted))
        if why is not None:
            place = start if isinstance(start, Checkpoint) else "the beginning"
            raise ConfigurationError(
                f"{processor.title} starts from {place}, but {why}. Declare start_from='end'"
                f"{'' if first is None else f', or first_kept={str(first)!r} to begin there'}; nothing was registered."
            )

    def _new_places(self, processor: Processor, known: Sequence[Place]) -> list[Place]:
        settings = processor.settings
        start = self._start(processor)
        role = Role.BESIDE if any(place.role is Role.ACTIVE for place in known) else Role.ACTIVE
        return [
            Place(
                id=partition,
                partitions=settings.partitions,
                reading_order=settings.order,
                role=role,
                status=Status.RUNNING,
                reason=None,
                fencing_token=0,
                checkpoint=start,
                highest_position=None if start is None else start.position,
                system_identifier=None,
                timeline=None,
                rebuild_to=None,
                updated_at=self._clock.now(),
            )
            for partition in processor.partition_ids
        ]

    def _start(self, processor: Processor) -> Checkpoint | None:
        match processor.settings.start_from:
            case Checkpoint() as checkpoint:
                reader = self._reader(processor, processor.partition_ids[0])
                last = reader.last()
                if last is None or reader.in_order(checkpoint) > last:
                    raise ConfigurationError(
                        f"Processor '{processor.id}': start_from={checkpoint} lies beyond the last message ({last}), "
                        "so what is appended up to there would never be delivered. Use 'end' to begin behind it."
                    )
                return reader.in_order(checkpoint)
            case "end":
                if self.engine.dialect.name in ("mysql", "mariadb"):
                    self._number_everything()
                return self._reader(processor, processor.partition_ids[0]).end()
        return None

    # Running

    def works(
        self,
        processor_id: str | None = None,
        version: int | None = None,
        stop: threading.Event | None = None,
        faults: Mapping[str, DbError] | None = None,
    ) -> list[LeasedWork]:
        """Return what a worker runs: every partition of every declared processor, or of one, and what they need.

        ``stop`` is what ends the worker: it also ends the wait before a handler's next try. ``faults`` is what
        ``register_each`` has found.
        """
        if not self.declared:
            return []
        woken = wake_ups(self._engine(PoolName.LISTENING))
        lookout = None if woken is None else Lookout(self.engine, self._clock)
        works = [
            LeasedWork(
                f"Processor {partition}",
                make=partial(self.runner, processor, partition, stop, lookout),
                check=partial(self._register, processor),
                poll_seconds=processor.settings.poll_seconds,
                longest_rest_seconds=_LONGEST_REST_SECONDS if woken is None else _LONGEST_REST_SECONDS_IF_WOKEN,
                wake_ups=woken,
                woken=PartitionRunner.woken,
                is_held_back=None if woken is None else PartitionRunner.is_held_back,
                abandon=PartitionRunner.abandon,
                failed=PartitionRunner.record_failure,
                on_fault=partial(self._record_fault, partition),
                fault=(faults or {}).get(processor.title),
            )
            for processor in self.declared
            if processor_id in (None, processor.id) and version in (None, processor.version)
            for partition in processor.partition_ids
        ]
        if self.engine.dialect.name in ("mysql", "mariadb"):
            works.append(
                LeasedWork(
                    Sequencer.title,
                    make=self.sequencer,
                    check=self.sequencer,
                    poll_seconds=_SEQUENCER_POLL_SECONDS,
                    longest_rest_seconds=_SEQUENCER_REST_SECONDS,
                )
            )
        return works

    def _record_fault(self, partition: PartitionId, error: Exception, retry_seconds: float) -> None:
        """Add to the history why a partition is not run; listings tell it as long as it is so."""
        del retry_seconds
        Letters(self.checkpoints).record_fault(partition, error)

    def chores(self) -> list[Chore]:
        """Return what some process must do now and then: say who holds the outbox back, delete what is old."""
        return (
            OutboxHousekeeping(self.engine, self.checkpoints, self._clock, self._retention).chores()
            if self.declared
            else []
        )

    def sequencer(self) -> Sequencer:
        """Return what numbers messages on MariaDB and MySQL."""
        shortest = min((item.settings.lease_seconds for item in self.declared), default=LONGEST_LEASE_SECONDS)
        return Sequencer(self.engine, self.leases, self._clock, min(shortest, LONGEST_LEASE_SECONDS))

    def runner(
        self,
        processor: Processor,
        partition: PartitionId,
        stop: threading.Event | None = None,
        lookout: Lookout | None = None,
    ) -> PartitionRunner:
        """Return what runs one partition."""
        engine, checkpoints = self.engine, self.checkpoints
        return PartitionRunner(
            processor,
            partition,
            reader=self._reader(processor, partition),
            checkpoints=checkpoints,
            leases=self.leases,
            cluster=Cluster(engine, checkpoints),
            engine=self._engine(PoolName.HANDLERS),
            telemetry=self._telemetry,
            clock=self._clock,
            stop=stop,
            lookout=lookout,
        )

    def _reader(self, processor: Processor, partition: PartitionId) -> OutboxReader:
        settings = processor.settings
        selection = Selection(settings.types, settings.partitions, partition.partition)
        return OutboxReader(self.engine, selection, settings.order)

    # Waiting

    def when_caught_up(self, processor_id: str, *, version: int | None = None, timeout_seconds: float = 30.0) -> None:
        """Wait until a processor has passed every message that is committed now. It must be running somewhere.

        Raises:
            OutboxError: it has not within that time, or it was stopped.
        """
        processor = self.get(processor_id, version)
        waiting = CaughtUp(self, processor)
        deadline = self._clock.monotonic() + timeout_seconds
        while not waiting.look():
            if self._clock.monotonic() >= deadline:
                raise OutboxError(
                    f"Processor '{processor_id}' did not catch up within {timeout_seconds:g} s: {waiting}."
                )
            self._clock.wait(threading.Event(), _WAIT_SECONDS)

    def run_until_caught_up(self, processor_id: str, *, version: int | None = None) -> int:
        """Run a processor here, in this thread, until nothing is left to read; return how many messages it delivered.

        For scripts and tests.

        Raises:
            LeaseConflictError: another process runs it, or it was stopped.
        """
        processor = self.get(processor_id, version)
        if (fault := self.register_each().get(processor.title)) is not None:
            raise fault
        if self.engine.dialect.name in ("mysql", "mariadb"):
            self._number_everything()
        delivered = 0
        for partition in processor.partition_ids:
            runner = self.runner(processor, partition)
            with runner.leased() as lease:
                while not (step := runner.process_batch(lease)).caught_up or step.delivered:
                    delivered += step.delivered
        return delivered

    def _number_everything(self) -> None:
        sequencer = self.sequencer()
        try:
            with sequencer.leased() as lease:
                while not sequencer.process_batch(lease).caught_up:
                    pass
        except LeaseConflictError:
            pass  # another process does


class CaughtUp:
    """Whether a processor has passed what was committed when this was made."""

    def __init__(self, processors: Processors, processor: Processor) -> None:
        self._processor = processor
        self._checkpoints = processors.checkpoints
        self._readers = [processors._reader(processor, partition) for partition in processor.partition_ids]
        self._last = self._readers[0].last()
        self._places: list[Place] = []

    def __str__(self) -> str:
        if not self._places:
            return "it is not registered, because nobody has run it yet"
        return "; ".join(
            f"{place.id} is at {place.checkpoint or 'the beginning'} of {self._last}" for place in self._places
        )

    def look(self) -> bool:
        """Return whether it has.

        Raises:
            OutboxError: it was stopped.
        """
        if self._last is None:
            return True
        self._places = self._checkpoints.of(self._processor.id, self._processor.version)
        for place in self._places:
            if not place.may_run:
                raise OutboxError(f"Processor {place.id} does not run: {place.reason or place.role.value}.")
        return bool(self._places) and all(self._has_passed(place) for place in self._places)

    def _has_passed(self, place: Place) -> bool:
        return self._last is not None and place.checkpoint is not None and place.checkpoint >= self._last


def _check_known(processor: Processor, known: Sequence[Place]) -> None:
    """Refuse a declaration that does not fit what is stored.

    Raises:
        ConfigurationError: the id is in use with a higher version, or this version with other partitions or order, or
            a stored checkpoint is asked for and there is none.
    """
    active = max((place.id.version for place in known if place.role is Role.ACTIVE), default=0)
    same = [place for place in known if place.id.version == processor.version]
    if same and same[0].role is Role.RETIRED:
        raise ConfigurationError(
            f"Processor '{processor.id}' version {processor.version} was retired when version {active} was promoted. "
            "Remove it from the code, or raise its version."
        )
    if processor.version < active:
        raise ConfigurationError(
            f"Processor '{processor.id}' is in use at version {active}, and version {processor.version} is declared "
            "here. Deploy the newer code, or give the older one another id."
        )
    if not same:
        _require_start(processor)
        return
    if same[0].partitions != processor.settings.partitions:
        raise ConfigurationError(
            f"Processor '{processor.id}' version {processor.version} is stored with {same[0].partitions} partitions, "
            f"and {processor.settings.partitions} are declared: keys would move between checkpoints. Raise the version "
            "to start it anew beside the old one, or keep the number."
        )
    if same[0].reading_order != processor.settings.order:
        raise ConfigurationError(
            f"Processor '{processor.id}' version {processor.version} is stored with order='{same[0].reading_order}', "
            f"and '{processor.settings.order}' is declared: the checkpoint would mean another place. Raise the version."
        )
    if len(same) < processor.settings.partitions:
        _require_start(processor)


def _require_start(processor: Processor) -> None:
    """Refuse one that has to go on where it stood, and never was anywhere."""
    if processor.settings.start_from == "stored":
        raise ConfigurationError(
            f"Processor '{processor.id}' version {processor.version} has no stored checkpoint, and start_from='stored' "
            "asks for one. Start it from 'beginning' or 'end' once."
        )
