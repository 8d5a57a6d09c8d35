"""``holdfast engine``: which engines an application declares, and asking one of them for something."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer

from ..app import Holdfast
from ..core.errors import DbError, MessageError, NotFoundError
from ..core.types import JsonObject
from ..engines.definition import EngineDefinition, operation_of
from ..engines.engines import MOST_EMBEDDED_BYTES
from ..engines.operator import drain_poison_audited, send_audited
from ..engines.queues.embedded import EmbeddedQueue
from ..records.audit import present_user
from .exits import CommandError, ExitCode
from .filters import seconds
from .loading import load_app
from .logs import configure_logging
from .options import AppOption, JsonOption, argument, group, option
from .output import print_json, print_line, print_note, print_table
from .records import app_with_tables, counted
from .trigger_views import require_tables

engine_app = group("See the declared engines, and send them messages.")

_COLUMNS = ("engine", "operation", "queue", "singleton", "max retry attempts", "schedule", "paused")
_FROM_STDIN = "-"
_TOO_DEEP = "The payload is nested too deeply. Store such data elsewhere and send where it is. Nothing was sent."
_LONGEST_DELAY = timedelta(days=7)


def _delay(text: str) -> timedelta:
    """Return the delay a person typed; a queue lets no message wait for longer than a week."""
    typed = seconds(text)
    if typed > _LONGEST_DELAY:
        raise typer.BadParameter(f"'{text}' is longer than 7d, which no message waits")
    return typed


_EngineArgument = Annotated[str, argument(metavar="ENGINE", help="The engine.")]
_PayloadArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PAYLOAD|-", help="JSON, such as '{\"key\": 1}'; - reads it from stdin; null when left out."
    ),
]
_OperationOption = Annotated[
    str | None, option("--operation", metavar="NAME", help="What is asked for; the engine's first.")
]
_CorrelationOption = Annotated[
    str | None,
    option(
        "--correlation-id",
        metavar="ID",
        help="The piece of business: what has succeeded for it is not executed again. A new one.",
    ),
]
_MessageOption = Annotated[str | None, option("--message-id", metavar="ID", help="Names the message. A new one.")]
_InstanceOption = Annotated[
    str | None, option("--instance-id", metavar="ID", help="The instance it is about; publisher.")
]
_DelayOption = Annotated[
    timedelta | None,
    option(
        "--delay",
        parser=_delay,
        metavar="TIME",
        help="How long it waits before it is delivered: 90 or 90s, 30m, 12h, at most 7d.",
    ),
]


@engine_app.command("list")
def list_engines(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List the engines that an application declares, each with its operations, and which of them are paused."""
    hf = load_app(app)
    configure_logging()
    declared = [item for operations in hf.engines.declared.values() for item in operations.values()]
    paused = _paused_engines(hf)
    faults = _faults_of_engines(hf)
    found = [
        _described(item, None if paused is None else item.name in paused, faults.get(item.name)) for item in declared
    ]
    if as_json:
        print_json(found)
    elif found:
        print_table(_COLUMNS, map(_row, found))
        for name, fault in faults.items():
            print_line(f"Engine '{name}' does not run until that is mended: {fault}")
    else:
        print_line("No engine is declared. Decorate a function with @hf.engine(…).")


@engine_app.command("send")
def send(
    engine: _EngineArgument,
    payload: _PayloadArgument = None,
    app: AppOption = None,
    operation: _OperationOption = None,
    correlation_id: _CorrelationOption = None,
    message_id: _MessageOption = None,
    instance_id: _InstanceOption = None,
    delay: _DelayOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask an engine for an operation: put a message into its queue."""
    hf = app_with_tables(app)
    with _wrong_input():
        definition = operation_of(hf.engines.declared, engine, operation)
        sent = send_audited(
            hf.engines,
            hf.database,
            present_user(),
            engine,
            _parsed(payload),
            operation=operation,
            message_id=message_id,
            correlation_id=correlation_id,
            instance_id=instance_id,
            delay_seconds=0.0 if delay is None else delay.total_seconds(),
        )
    queue = definition.settings.queue
    if as_json:
        answer = {"message_id": sent.message_id, "correlation_id": sent.correlation_id, "engine": sent.engine}
        print_json({**answer, "operation": sent.operation, "instance_id": sent.instance_id, "queue": queue})
    else:
        print_line(
            f"Sent message '{sent.message_id}' to {queue}: {sent.engine} {sent.operation}, correlation id "
            f"'{sent.correlation_id}'."
        )


@engine_app.command("drain-poison")
def drain_poison(engine: _EngineArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Turn what a host has moved to an engine's QUEUE-poison into dead letters. A worker does so by itself."""
    hf = app_with_tables(app)
    with _wrong_input():
        drained = drain_poison_audited(hf.engines, hf.database, present_user(), engine)
    if as_json:
        print_json({"engine": engine, "drained": drained})
    elif drained:
        print_line(f"{counted(drained, 'message')} of '{engine}' went from the poison to the dead letters.")
    else:
        print_line(f"There is no poison of '{engine}'.")


@contextmanager
def _wrong_input() -> Iterator[None]:
    """Let what cannot be sent as it was typed end as wrong usage; nothing was sent."""
    try:
        yield
    except (NotFoundError, MessageError) as error:
        sentence = _TOO_DEEP if isinstance(error.__cause__, RecursionError) else str(error)
        raise CommandError(sentence, ExitCode.WRONG_CONFIGURATION) from error


def _parsed(text: str | None) -> Any:
    """Return the payload that a person typed or piped.

    Raises:
        MessageError: it is not JSON, or too large for any queue.
    """
    if text is None:
        return None
    if text == _FROM_STDIN:
        text = _from_stdin()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"The payload is not JSON: {error}. Write a text in double quotes, as in '\"text\"'. Nothing was sent."
        ) from error


def _from_stdin() -> str:
    try:
        text = sys.stdin.read(MOST_EMBEDDED_BYTES + 1)
    except UnicodeDecodeError as error:
        raise MessageError("What stdin holds is not text in UTF-8. Nothing was sent.") from error
    if len(text) > MOST_EMBEDDED_BYTES:
        raise MessageError(
            f"The payload has more than {MOST_EMBEDDED_BYTES:,} characters, which no queue takes. Store large data "
            "elsewhere and send where it is."
        )
    return text


def engine_topics(hf: Holdfast) -> dict[str, str]:
    """Return the topics that hold the messages of engines, by engine; of those whose queue is in the database."""
    queues = {name: hf.engines.queue(name) for name in hf.engines.declared}
    return {name: queue.topic for name, queue in queues.items() if isinstance(queue, EmbeddedQueue)}


def _paused_engines(hf: Holdfast) -> set[str] | None:
    """Return the engines whose topic is paused; None when the database cannot say, which is noted."""
    try:
        if not hf.engines.declared:
            return set()
        topics = engine_topics(hf)
        if not topics:
            return set()
        require_tables(hf)
        paused = {topic.name for topic in hf.jobs.store.topics() if topic.is_paused}
    except DbError as error:
        print_note(f"Whether an engine is paused cannot be told: {error}")
        return None
    return {name for name, topic in topics.items() if topic in paused}


def _faults_of_engines(hf: Holdfast) -> dict[str, str]:
    """Return what is wrong with engines, which therefore do not run, by name."""
    try:
        return {name: str(fault) for name, fault in hf.engines.faults_by_name().items()}
    except DbError as error:  # what all of them need is not there
        return dict.fromkeys(hf.engines.declared, str(error))


def _described(item: EngineDefinition, is_paused: bool | None, fault: str | None) -> JsonObject:
    settings = item.settings
    schedule = settings.schedule
    return {
        "engine": item.name,
        "operation": settings.operation,
        "queue": settings.queue,
        "singleton": settings.singleton,
        "max_retry_attempts": settings.max_attempts,
        "schedule": None if schedule is None else {"cron": schedule.cron, "timezone": schedule.timezone},
        "paused": is_paused,
        "fault": fault,
    }


def _row(described: JsonObject) -> tuple[str, ...]:
    schedule = described["schedule"]
    return (
        described["engine"],
        described["operation"],
        described["queue"],
        "yes" if described["singleton"] else "",
        str(described["max_retry_attempts"]),
        "" if schedule is None else f"'{schedule['cron']}' {schedule['timezone']}",
        {True: "paused", False: "", None: "?"}[described["paused"]],
    )
