"""``/api/registry``: what an application's engines share, who has its lock, and what people do about that.

Every change is a compare-and-set of ``Registry``, which checks who has the lock; a refusal has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from ..core.errors import ConfigurationError, Conflict
from ..core.types import FencingToken, JsonObject
from ..engines.operator import audited_registry
from ..engines.registry import EngineTablesConfig, Registry, RegistryView
from ..engines.registry_shape import (
    DEFAULT_LOCK_SECONDS,
    LONGEST_LOCK_SECONDS,
    checked_fields,
    checked_job_id,
    refuse_reserved,
)
from ..records.retention import SHORTEST_RETENTION_DAYS, check_configured_days
from .access import Admin, Operator, Reader, WithServices, succeeded
from .envelope import Succeeded, Wire, described
from .errors import ApiError
from .openapi import answers
from .parameters import Change, IdText
from .ports import Services
from .tokens import Caller, Role

router = APIRouter(prefix="/api/registry", tags=["Registry"])

_PLAIN = r"[^\x00-\x1f\x7f-\x9f]"
_PLAIN_NO_SPACE = r"[^\s\x00-\x1f\x7f-\x9f]"
_JOB_ID = rf"^{_PLAIN_NO_SPACE}({_PLAIN}*{_PLAIN_NO_SPACE})?$"
_ACCOUNT = r"^([a-z0-9]{3,24})?$"
_TABLE = r"^[A-Za-z][A-Za-z0-9]{2,62}$"
_MOST_DAYS = 36_500
_MOST_REMOVED = 100
_LARGEST_TOKEN = 2**53 - 1
_USUAL = EngineTablesConfig()


def _job_id(text: str) -> str:
    try:
        return checked_job_id(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _days(given: float) -> float:
    try:
        check_configured_days(given)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return given


_JobId = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_JOB_ID), AfterValidator(_job_id)]
_Token = Annotated[int, Field(ge=0, le=_LARGEST_TOKEN)]
_Account = Annotated[str, StringConstraints(pattern=_ACCOUNT)]
_TableName = Annotated[str, StringConstraints(pattern=_TABLE)]
_Days = Annotated[
    int | float,
    Field(le=_MOST_DAYS, json_schema_extra={"minimum": int(SHORTEST_RETENTION_DAYS)}),
    AfterValidator(_days),
]
_FieldName = Annotated[str, StringConstraints(min_length=1)]


class Lock(Wire):
    """Who may change the registry, in the standard's words."""

    lock_job_id: str = Field(description="The job that has the lock; empty when nobody has.")
    lock_duration_seconds: int | float
    lock_until_utc: datetime | None
    lock_fencing_token: int | None = Field(description="Tells runs of one job apart.")


class Tables(Wire):
    """Where engines keep dead letters and history."""

    storage_account_name: str
    dlq_table_name: str
    history_table_name: str
    retention_days: int | float


class RegistryDetails(Wire):
    """The registry as it is now."""

    name: str
    registry_version: int
    lock_state: Literal["held", "free", "expired"] = Field(
        description="`expired` when a job ended without giving the lock back; any job may take it then."
    )
    instance_lock: Lock
    engine_tables_config: Tables | None = Field(description="The application's; null in the registry of an instance.")
    fields: dict[str, Any] = Field(
        default_factory=dict,
        description="The application's own fields. Left out unless the token may see payloads.",
    )


class InstanceQuery(BaseModel):
    """Whose registry is meant."""

    model_config = ConfigDict(alias_generator=to_camel)

    instance_id: IdText | None = Field(None, description="That of an instance; the application's when left out.")


def _asked_for(services: WithServices, query: Annotated[InstanceQuery, Query()]) -> Registry:
    return services.registry.instance(query.instance_id)


OwnRegistry = Annotated[Registry, Depends(_asked_for)]


class NewTables(Change):
    """Where engines are to keep dead letters and history; what is left out is as the standard has it."""

    storage_account_name: _Account = _USUAL.storage_account_name
    dlq_table_name: _TableName = _USUAL.dlq_table_name
    history_table_name: _TableName = _USUAL.history_table_name
    retention_days: _Days = _USUAL.retention_days


class WholeTables(Change):
    """Where engines are to keep dead letters and history, each named: nothing is reset by being left out."""

    storage_account_name: _Account
    dlq_table_name: _TableName
    history_table_name: _TableName
    retention_days: _Days


class NewRegistry(Change):
    """What a new registry holds."""

    engine_tables_config: NewTables | None = Field(None, description="As the standard has it when left out.")
    fields: dict[str, Any] | None = Field(None, description="The application's own fields.")


class Locking(Change):
    """Who is to have the lock, and for how long."""

    job_id: _JobId
    duration_seconds: float = Field(
        DEFAULT_LOCK_SECONDS,
        ge=1,
        le=LONGEST_LOCK_SECONDS,
        allow_inf_nan=False,
        description="Nothing extends the lock: it ends by itself after so long.",
    )


class Unlocking(Change):
    """Whose lock is given back, or taken away."""

    job_id: _JobId = Field(description="The job that has the lock.")
    fencing_token: _Token | None = Field(None, description="Of that run of the job only.")
    force: bool = Field(False, description="Take it from a job that may be at work. Needs the role `admin`.")


class RegistryChange(Change):
    """What the holder of the lock changes."""

    job_id: _JobId = Field(description="The job that has the lock.")
    fencing_token: _Token | None = Field(None, description="Of that run of the job only.")
    changes: dict[str, Any] | None = Field(None, description="Fields of the application to set, each as a whole.")
    remove: Annotated[list[_FieldName], Field(max_length=_MOST_REMOVED)] | None = Field(
        None, description="Fields of the application to remove."
    )
    engine_tables_config: WholeTables | None = Field(
        None, description="Where engines keep their tables, as a whole. Needs the role `admin`."
    )


@router.get(
    "",
    summary="Get the registry",
    **answers(Succeeded[RegistryDetails], 400, 404, query=InstanceQuery, leaves_out=True),
)
def get_registry(
    request: Request, services: WithServices, caller: Reader, own: OwnRegistry
) -> Succeeded[RegistryDetails]:
    """Show the registry and its lock. Needs `read`; the application's own fields come with `payload` only."""
    return succeeded(request, _details(_existing(own), caller))


@router.post(
    "",
    summary="Make the registry",
    **answers(Succeeded[RegistryDetails], 400, 409, 413, 415, query=InstanceQuery, leaves_out=True),
)
def init_registry(
    request: Request, services: WithServices, caller: Admin, own: OwnRegistry, new: NewRegistry | None = None
) -> Succeeded[RegistryDetails]:
    """Make the registry; one that is there is never overwritten. Needs the role `admin`."""
    new = new or NewRegistry.model_validate({})
    tables, fields = _tables(own, new.engine_tables_config), _checked_fields(new.fields, "fields")
    name = own.name
    if own.read() is not None:
        raise ApiError(409, f"There is a registry '{name}' already; nothing was changed.", name)
    details = {**({} if tables is None else tables.as_json()), "fields": sorted(fields)}
    with _refusals(own), audited_registry(own, services.database, caller.name, "registry init", details) as registry:
        view = registry.init(tables, fields)
    return succeeded(request, _details(view, caller))


@router.post(
    "/lock",
    summary="Lock the registry",
    **answers(Succeeded[RegistryDetails], 400, 404, 409, 413, 415, query=InstanceQuery, leaves_out=True),
)
def lock_registry(
    locking: Locking, request: Request, services: WithServices, caller: Operator, own: OwnRegistry
) -> Succeeded[RegistryDetails]:
    """Take the lock for a job, so that nobody else changes the registry. Needs the role `operate`.

    A job that has the lock keeps it, for a whole duration from now.
    """
    _existing(own)
    details = {"job_id": locking.job_id, "duration_seconds": locking.duration_seconds}
    with _refusals(own, "durationSeconds"):
        own.require_free(locking.job_id)
        with audited_registry(own, services.database, caller.name, "registry lock", details) as registry:
            view = registry.acquire(locking.job_id, duration_seconds=locking.duration_seconds)
    return succeeded(request, _details(view, caller))


@router.post(
    "/unlock",
    summary="Unlock the registry",
    **answers(Succeeded[RegistryDetails], 400, 404, 409, 413, 415, query=InstanceQuery, leaves_out=True),
)
def unlock_registry(
    unlocking: Unlocking, request: Request, services: WithServices, caller: Operator, own: OwnRegistry
) -> Succeeded[RegistryDetails]:
    """Give the lock of a job back, or with `force` take it away. Needs the role `operate`; `force` needs `admin`.

    A registry that nobody has locked is left as it is.
    """
    if unlocking.force and not caller.may(Role.ADMIN):
        raise ApiError(403, f"To take the lock away needs a token with the role '{Role.ADMIN}'.", "force")
    view = _existing(own)
    if view.lock.job_id:
        view = _unlocked(services, own, caller, unlocking, view)
    return succeeded(request, _details(view, caller))


@router.patch(
    "",
    summary="Change the registry",
    **answers(Succeeded[RegistryDetails], 400, 404, 409, 413, 415, query=InstanceQuery, leaves_out=True),
)
def change_registry(
    change: RegistryChange, request: Request, services: WithServices, caller: Operator, own: OwnRegistry
) -> Succeeded[RegistryDetails]:
    """Change the registry in one write, as the job that has its lock.

    Needs the role `operate`; `engineTablesConfig` needs `admin`: it says where records are, and how long they are kept.
    """
    if change.engine_tables_config is not None and not caller.may(Role.ADMIN):
        raise ApiError(
            403, f"To change engineTablesConfig needs a token with the role '{Role.ADMIN}'.", "engineTablesConfig"
        )
    if change.changes is None and change.remove is None and change.engine_tables_config is None:
        raise ApiError.validation("Name what to change: changes, remove or engineTablesConfig.", "changes")
    changes, remove = _checked_fields(change.changes, "changes"), _checked_names(change.remove)
    tables = None if change.engine_tables_config is None else _tables(own, change.engine_tables_config)
    _existing(own)
    details = {
        "job_id": change.job_id,
        "changed": sorted(changes),
        "removed": sorted(remove),
        "engine_tables_config": None if tables is None else tables.as_json(),
    }
    with _refusals(own), audited_registry(own, services.database, caller.name, "registry change", details) as registry:
        view = registry.change(
            change.job_id, changes, remove=remove, tables=tables, fencing_token=_fencing(change.fencing_token)
        )
    return succeeded(request, _details(view, caller))


def _existing(registry: Registry) -> RegistryView:
    """Return the registry.

    Raises:
        ApiError: 404, there is none.
    """
    view = registry.read()
    if view is None:
        raise ApiError(404, f"There is no registry '{registry.name}' yet. Make it with a POST.", registry.name)
    return view


def _unlocked(
    services: Services, own: Registry, caller: Caller, unlocking: Unlocking, seen: RegistryView
) -> RegistryView:
    """Return the registry without the lock that was seen, if it is the one that was named."""
    token = _fencing(unlocking.fencing_token)
    details = {"job_id": unlocking.job_id, "fencing_token": seen.lock.fencing_token, "force": unlocking.force}
    named = replace(
        seen.lock, job_id=unlocking.job_id, fencing_token=seen.lock.fencing_token if token is None else token
    )
    with _refusals(own), audited_registry(own, services.database, caller.name, "registry unlock", details) as registry:
        if unlocking.force:
            return registry.force_unlock(named)
        return registry.release(unlocking.job_id, fencing_token=token)


@contextmanager
def _refusals(own: Registry, field: str | None = None) -> Iterator[None]:
    """Answer a change that cannot be made as things are; nothing was changed.

    Raises:
        ApiError: 409, the lock is not the job's, or somebody was faster; 400, the store cannot have ``field`` so.
    """
    try:
        yield
    except Conflict as error:
        raise ApiError(409, str(error), own.name) from error
    except ConfigurationError as error:
        if field is None or error.__cause__ is not None:  # not the request: the database
            raise
        raise ApiError.validation(str(error), field) from error


def _tables(own: Registry, given: NewTables | WholeTables | None) -> EngineTablesConfig | None:
    """Return where engines are to keep their tables; None for an instance, whose registry does not say.

    Raises:
        ApiError: 400, the names cannot be had, or not in this registry.
    """
    if given is None:
        return _USUAL if own.instance_id is None else None
    try:
        tables = EngineTablesConfig(**given.model_dump())
        own.require_tables(tables)
        return tables
    except ConfigurationError as error:
        raise ApiError.validation(str(error), "engineTablesConfig") from error


def _checked_fields(given: JsonObject | None, field: str) -> JsonObject:
    """Return fields of the application.

    Raises:
        ApiError: 400, one cannot be kept, or the registry keeps it itself.
    """
    try:
        return checked_fields(given or {})
    except ConfigurationError as error:
        raise ApiError.validation(str(error), field) from error


def _checked_names(given: list[str] | None) -> list[str]:
    names = given or []
    try:
        refuse_reserved(names)
    except ConfigurationError as error:
        raise ApiError.validation(str(error), "remove") from error
    return names


def _fencing(token: int | None) -> FencingToken | None:
    return None if token is None else FencingToken(token)


def _whole(seconds: float) -> int | float:
    return int(seconds) if seconds.is_integer() else seconds


def _details(view: RegistryView, caller: Caller) -> RegistryDetails:
    lock = view.lock
    own: dict[str, Any] = {"fields": view.state} if caller.may(Role.PAYLOAD) else {}
    return RegistryDetails(
        name=view.name,
        registry_version=view.version,
        lock_state="free" if not lock.job_id else "held" if view.is_locked else "expired",
        instance_lock=Lock(
            lock_job_id=lock.job_id,
            lock_duration_seconds=_whole(lock.duration_seconds),
            lock_until_utc=lock.until,
            lock_fencing_token=lock.fencing_token,
        ),
        engine_tables_config=None if view.instance_id is not None else Tables(**described(Tables, view.tables)),
        **own,
    )
