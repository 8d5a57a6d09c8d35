"""What a registry document holds, how it is read, and which names, times and values it takes. Pure.

::

    {"registryVersion": 7,
     "instanceLock": {"lockJobId": "", "lockDurationSeconds": 3600, "lockUntilUtc": ""},
     "engineTablesConfig": {"storageAccountName": "", "dlqTableName": "engineDlq", …},
     "recentWriteIds": […],
     … the application's own fields}

``schemas/registry.json`` is the same as a JSON Schema.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import resources

from ..core.errors import ConfigurationError, UnreadableStateError
from ..core.moments_ahead import lies_ahead
from ..core.strict_json import strictly_loaded
from ..core.types import FencingToken, JsonObject
from ..lease.document import parse_time
from .tables.config import EngineTables

DEFAULT_LOCK_SECONDS = 3600.0
LONGEST_LOCK_SECONDS = 31 * 24 * 3600.0
RESERVED_FIELDS = ("registryVersion", "instanceLock", "engineTablesConfig", "recentWriteIds")

Document = JsonObject

_PLAIN = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_JOB_ID = re.compile(rf"(?!\s){_PLAIN}{{1,200}}(?<!\s)")
_SEGMENT = re.compile(r"[a-z0-9_][a-z0-9_.\-]{0,99}")  # in small letters: not every database tells them from large ones
_LONGEST_INSTANCE_ID = 200
_READABLE = 60
_ACCOUNT = re.compile(r"(?:[a-z0-9]{3,24})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LockView:
    """The lock part of a document, its time parsed. ``job_id`` is empty when nobody has the lock."""

    job_id: str
    duration_seconds: float
    until: datetime | None
    fencing_token: FencingToken | None

    def is_valid(self, now: datetime, skew_margin: timedelta = timedelta()) -> bool:
        """Return whether the lock must be respected: some job has it, and its end plus margin has not passed."""
        return self.until is not None and now - skew_margin < self.until

    def ends_ahead(self, now: datetime) -> bool:
        """Return whether it ends later than any lock that is taken now: the clock by which it was taken was wrong."""
        return self.until is not None and lies_ahead(self.until, now + timedelta(seconds=LONGEST_LOCK_SECONDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTablesConfig(EngineTables):
    """Where engines keep dead letters and history: the ``engineTablesConfig`` of the standard."""

    storage_account_name: str = ""

    def __post_init__(self) -> None:
        account: object = self.storage_account_name
        if not isinstance(account, str) or not _ACCOUNT.fullmatch(account):
            raise ConfigurationError(
                f"The storage account {account!r:.80} cannot be one: give 3 to 24 small letters and digits, or nothing."
            )
        EngineTables.__post_init__(self)
        if not math.isfinite(self.retention_days):
            raise ConfigurationError("retentionDays must be a number of days, and infinity is none in JSON.")

    @property
    def tables(self) -> EngineTables:
        """Return the names of the tables, and how long what is settled stays in them."""
        return EngineTables(self.dlq_table_name, self.history_table_name, self.retention_days)

    @property
    def has_usual_names(self) -> bool:
        """Return whether account and tables are those of a registry that says nothing."""
        return replace(self, retention_days=EngineTablesConfig().retention_days) == EngineTablesConfig()

    def as_json(self) -> JsonObject:
        """Return the fields as the document has them."""
        return {
            "storageAccountName": self.storage_account_name,
            "dlqTableName": self.dlq_table_name,
            "historyTableName": self.history_table_name,
            "retentionDays": self.retention_days,
        }


@dataclass(frozen=True, slots=True)
class RegistryView:
    """The registry as it was read or written, and the store's time of that."""

    name: str
    document: Document
    read_at: datetime
    instance_id: str | None = None

    @property
    def version(self) -> int:
        """Return ``registryVersion``."""
        return version_of(self.document)

    @property
    def lock(self) -> LockView:
        """Return the lock part."""
        return lock_of(self.document, self.name)

    @property
    def is_locked(self) -> bool:
        """Return whether some job had a valid lock when this was read."""
        return self.lock.is_valid(self.read_at)

    @property
    def tables(self) -> EngineTablesConfig:
        """Return where engines keep dead letters and history.

        Raises:
            ConfigurationError: this is the registry of an instance, and that is the application's.
        """
        if self.instance_id is not None:
            raise tables_elsewhere(self.name, self.instance_id)
        return tables_of(self.document, self.name)

    @property
    def state(self) -> JsonObject:
        """Return the application's own fields."""
        return own_fields(self.document)


def parse(content: bytes, name: str) -> Document:
    """Return the registry kept in ``content``. One without an ``instanceLock`` is not locked.

    Raises:
        UnreadableStateError: it is not a registry, or nobody can tell whether its lock is valid.
    """
    try:
        document = strictly_loaded(content.decode())
    except (ValueError, RecursionError) as error:
        raise _unreadable(name, f"it is not JSON ({error})") from error
    version = document.get("registryVersion") if isinstance(document, dict) else None
    if type(version) is not int or version < 0:
        raise _unreadable(name, "it has no usable registryVersion")
    lock_of(document, name)
    parsed: Document = document
    return parsed


def version_of(document: Document) -> int:
    """Return ``registryVersion``, which every write raises; 0 where there is no registry yet."""
    return int(document.get("registryVersion", 0))


def lock_of(document: Document, name: str = "?") -> LockView:
    """Return the lock.

    Raises:
        UnreadableStateError: the lock part is malformed.
    """
    lock = document.get("instanceLock") or {}
    try:
        job_id, token = lock.get("lockJobId") or "", lock.get("lockFencingToken")
        if not isinstance(job_id, str) or type(token) not in (int, type(None)):
            raise TypeError
        until = parse_time(lock["lockUntilUtc"]) if job_id else None
        return LockView(job_id, float(lock.get("lockDurationSeconds", DEFAULT_LOCK_SECONDS)), until, token)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _unreadable(name, "its instanceLock cannot be read") from error


def tables_of(document: Document, name: str = "?") -> EngineTablesConfig:
    """Return where engines keep their tables; the standard's names where the document says nothing.

    Raises:
        UnreadableStateError: that part is malformed.
    """
    config, usual = document.get("engineTablesConfig") or {}, EngineTablesConfig()
    try:
        return EngineTablesConfig(
            storage_account_name=config.get("storageAccountName", usual.storage_account_name),
            dlq_table_name=config.get("dlqTableName", usual.dlq_table_name),
            history_table_name=config.get("historyTableName", usual.history_table_name),
            retention_days=config.get("retentionDays", usual.retention_days),
        )
    except (AttributeError, ConfigurationError) as error:
        raise _unreadable(name, f"its engineTablesConfig cannot be used ({error})") from error


def own_fields(document: Document) -> JsonObject:
    """Return what the application itself keeps in the registry."""
    return {name: value for name, value in document.items() if name not in RESERVED_FIELDS}


def checked_fields(changes: Mapping[str, object]) -> JsonObject:
    """Return the application's fields as JSON keeps them, shared with nobody.

    Raises:
        ConfigurationError: they are not JSON, or one is a field that the registry keeps itself.
    """
    refuse_reserved(changes)
    try:
        _check_keys(changes)
        text = json.dumps(dict(changes), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"What the registry is to hold is not JSON: {error}. Nothing was written.") from error
    fields: JsonObject = json.loads(text)
    return fields


def _check_keys(value: object) -> None:
    """Refuse names that JSON does not have, also within: Python would write 1 as "1", beside a "1" that is there."""
    if isinstance(value, Mapping):
        for name, within in value.items():
            if not isinstance(name, str):
                raise TypeError(f"the name {name!r:.80} is no text")
            _check_keys(within)
    elif isinstance(value, list | tuple):
        for within in value:
            _check_keys(within)


def refuse_reserved(names: Collection[object]) -> None:
    """Refuse names that are no text, or of fields that the registry keeps itself.

    Raises:
        ConfigurationError: the first of them.
    """
    for name in names:
        if not isinstance(name, str) or not name or name in RESERVED_FIELDS:
            raise ConfigurationError(
                f"The registry's field {name!r:.80} cannot be changed like this: it must be a text, and none of "
                f"{', '.join(RESERVED_FIELDS)}. Nothing was written."
            )


def checked_job_id(job_id: object) -> str:
    """Return a job's name when it can hold a lock.

    Raises:
        ConfigurationError: it is empty, too long, has control characters, or a space at either end.
    """
    if isinstance(job_id, str) and _JOB_ID.fullmatch(job_id):
        return job_id
    raise ConfigurationError(
        f"The job id {job_id!r:.80} cannot hold the registry's lock: give 1 to 200 characters without control "
        "characters, and no space at either end."
    )


def path_segment(instance_id: object) -> str:
    """Return an instance as a part of its document's name: itself where it can be, and never another's.

    Raises:
        ConfigurationError: it is no text of 1 to 200 characters.
    """
    if not isinstance(instance_id, str) or not 0 < len(instance_id) <= _LONGEST_INSTANCE_ID:
        raise ConfigurationError(
            f"The instance id {instance_id!r:.80} cannot have a registry: give a text of 1 to {_LONGEST_INSTANCE_ID} "
            "characters."
        )
    if _SEGMENT.fullmatch(instance_id) and ".." not in instance_id:
        return instance_id
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in instance_id[:_READABLE])
    digest = hashlib.sha256(instance_id.encode(errors="surrogatepass")).hexdigest()
    return f"{readable.lower()}~{digest[:24]}"


def tables_elsewhere(name: str, instance_id: str) -> ConfigurationError:
    """Return the sentence for whoever looks for ``engineTablesConfig`` in the registry of an instance."""
    return ConfigurationError(
        f"The registry '{name}' is of instance '{instance_id:.80}', and engineTablesConfig is the application's: use "
        "hf.registry, or leave the instance out. Nothing was written."
    )


def tables_in_database(name: str) -> ConfigurationError:
    """Return the sentence for whoever names tables that a database does not have."""
    usual = EngineTablesConfig()
    return ConfigurationError(
        f"The registry '{name}' cannot name other tables: this application keeps them in its database. Leave "
        f"storageAccountName empty and the tables '{usual.dlq_table_name}' and '{usual.history_table_name}', or pass "
        "Holdfast(engine_tables=AzureStorage…). Nothing was written."
    )


def checked_duration(seconds: object) -> float:
    """Return how long a lock is to last; an int where it is a whole number of seconds.

    Raises:
        ConfigurationError: it is not a number of seconds above 0 and up to 31 days.
    """
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds <= LONGEST_LOCK_SECONDS:
        return int(seconds) if float(seconds).is_integer() else seconds
    raise ConfigurationError(
        f"A registry lock cannot last {seconds!r:.80} seconds: give more than 0 and at most "
        f"{LONGEST_LOCK_SECONDS:.0f}. Long work extends its lock while it runs."
    )


def json_schema() -> JsonObject:
    """Return the JSON Schema of the registry document."""
    text = resources.files(__package__).joinpath("schemas", "registry.json").read_text("utf-8")
    schema: JsonObject = json.loads(text)
    return schema


def _unreadable(name: str, fact: str) -> UnreadableStateError:
    return UnreadableStateError(
        f"The registry '{name}' is corrupt: {fact}. Nothing was changed. Restore it from a backup, or correct it by "
        "hand."
    )
