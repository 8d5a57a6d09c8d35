"""``/api/engines``: what is declared, and asking an engine for something."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from ..core.errors import ConfigurationError, Conflict, MessageError, NotFoundError
from ..engines.definition import EngineDefinition, operation_of
from ..engines.operator import send_audited
from ..records.schema import ENGINE_LENGTH
from .access import Operator, Reader, WithServices, succeeded
from .envelope import Succeeded, Wire
from .errors import ApiError
from .middleware import exchange_of
from .openapi import answers
from .parameters import AskedEngine, IdText, Moment, whole_number
from .ports import Services

router = APIRouter(prefix="/api/engines", tags=["Engines"])

_LONGEST_DELAY_SECONDS = 7 * 86_400
_OURS = "holdfast"  # what the fields begin with that queues add to a message
_PARAMETERS = ("delaySeconds", "ifRunning")


class Slots(Wire):
    """When an operation is sent a message by itself."""

    cron: str
    timezone: str


class OperationItem(Wire):
    """What an engine can be asked for."""

    operation: str
    singleton: bool = Field(description="Whether only one runs at a time for each instance.")
    max_retry_attempts: int = Field(description="A message that was dequeued so often becomes a dead letter.")
    schedule: Slots | None


class EngineItem(Wire):
    """A declared engine."""

    engine: str
    queue: str
    operations: list[OperationItem] = Field(description="Messages that name none are for the first.")


class EngineList(Wire):
    """The declared engines."""

    items: list[EngineItem]


class SendQuery(BaseModel):
    """How a message is sent."""

    model_config = ConfigDict(alias_generator=to_camel)

    delay_seconds: Annotated[int, BeforeValidator(whole_number)] = Field(
        0, ge=0, le=_LONGEST_DELAY_SECONDS, description="How long the message waits before it is delivered."
    )
    if_running: Literal["wait", "reject"] = Field(
        "wait",
        description="`reject`: a 409 and no message while the singleton is running for that instance or its registry "
        "is locked. Left out, the message waits for its turn.",
    )


class AskedMessage(BaseModel):
    """An engine message. Fields that are not named here are kept as they are."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="allow")

    payload: Any = Field(description="Anything, also null.")
    operation: IdText | None = Field(None, description="What is asked for; the engine's first operation when left out.")
    message_id: IdText | None = Field(None, description="Names the message; a new one when left out.")
    correlation_id: IdText | None = Field(
        None, description="Names the piece of business; the request's X-Correlation-Id when left out."
    )
    instance_id: IdText | None = Field(None, description="The instance it is about; `publisher` when left out.")
    causation_id: IdText | None = Field(None, description="The message or request that led to this one.")
    engine: Annotated[str, StringConstraints(min_length=1, max_length=ENGINE_LENGTH)] | None = Field(
        None, description="Nothing else than the engine of the path."
    )
    enqueued_at_utc: Moment | None = Field(None, description="Not kept: the time at which it is sent is.")

    @property
    def others(self) -> dict[str, Any]:
        """Return the fields that we do not know."""
        return dict(self.model_extra or {})


class Accepted(Wire):
    """The message that an engine was sent."""

    message_id: str
    correlation_id: str
    engine: str
    operation: str
    queue: str


@router.get("", summary="List the declared engines", **answers(Succeeded[EngineList], 400))
def list_engines(request: Request, services: WithServices, _caller: Reader) -> Succeeded[EngineList]:
    """List the engines that the application declares. Needs the role `read`."""
    declared = services.engines.declared
    items = [_engine_item(name, list(operations.values())) for name, operations in declared.items()]
    return succeeded(request, EngineList(items=items))


@router.post(
    "/{engine}/messages",
    summary="Send an engine a message",
    status_code=202,
    **answers(Succeeded[Accepted], 400, 404, 409, 413, 415, query=SendQuery),
)
def send_message(
    engine: AskedEngine,
    query: Annotated[SendQuery, Query()],
    message: AskedMessage,
    request: Request,
    services: WithServices,
    caller: Operator,
) -> Succeeded[Accepted]:
    """Put a message into an engine's queue. Needs the role `operate`.

    A message id that waits in a queue in the database already is a 409; so is a singleton at work, with
    `ifRunning=reject`.
    """
    queue = _operation(services, engine, message.operation).settings.queue
    _check_fields(engine, message)
    if query.if_running == "reject":
        _require_idle(services, engine, message)
    try:
        sent = send_audited(
            services.engines,
            services.database,
            caller.name,
            engine,
            message.payload,
            operation=message.operation,
            message_id=message.message_id,
            correlation_id=message.correlation_id or exchange_of(request).correlation_id,
            instance_id=message.instance_id,
            causation_id=message.causation_id,
            others=message.others,
            delay_seconds=query.delay_seconds,
        )
    except MessageError as error:  # all else that can be wrong with it was looked at before
        raise ApiError(413, str(error), "body") from error
    except Conflict as error:
        raise ApiError(409, str(error), "messageId") from error
    accepted = Accepted(
        message_id=sent.message_id,
        correlation_id=sent.correlation_id,
        engine=sent.engine,
        operation=sent.operation,
        queue=queue,
    )
    return succeeded(request, accepted)


def _operation(services: Services, engine: str, operation: str | None) -> EngineDefinition:
    """Return what is asked for.

    Raises:
        ApiError: 404, there is no such engine or operation.
    """
    try:
        return operation_of(services.engines.declared, engine, operation)
    except NotFoundError as error:
        target = f"{engine}/{operation}" if engine in services.engines.declared else engine
        raise ApiError(404, str(error), target) from error


def _require_idle(services: Services, engine: str, message: AskedMessage) -> None:
    """Refuse a message for a singleton that could not start now.

    Raises:
        ApiError: 409, it is running or its registry is locked; 400, it is no singleton.
    """
    try:
        services.engines.require_idle(engine, message.operation, message.instance_id)
    except Conflict as error:
        raise ApiError(
            409, str(error), f"{engine}-{message.instance_id or services.engines.default_instance_id}"
        ) from error
    except ConfigurationError as error:
        raise ApiError.validation(str(error), "ifRunning") from error


def _check_fields(engine: str, message: AskedMessage) -> None:
    """Refuse what would be lost, or taken for something that a queue has added.

    Raises:
        ApiError: 400, naming the field.
    """
    if message.engine not in (None, engine):
        raise ApiError.validation("The message is for another engine than the path names.", "engine")
    for name in message.others:
        if name in _PARAMETERS:
            raise ApiError.validation(f"{name} is a parameter of the address, not a field.", name)
        if name.startswith(_OURS):
            raise ApiError.validation(f"Fields that begin with '{_OURS}' are what queues add to a message.", name)


def _engine_item(name: str, operations: list[EngineDefinition]) -> EngineItem:
    return EngineItem(
        engine=name, queue=operations[0].settings.queue, operations=[_operation_item(item) for item in operations]
    )


def _operation_item(definition: EngineDefinition) -> OperationItem:
    settings = definition.settings
    schedule = settings.schedule
    return OperationItem(
        operation=settings.operation,
        singleton=settings.singleton,
        max_retry_attempts=settings.max_attempts,
        schedule=None if schedule is None else Slots(cron=schedule.cron, timezone=schedule.timezone),
    )
