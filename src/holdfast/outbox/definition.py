"""A processor as it was declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigurationError
from ..core.key_text import shown_key
from ..core.keywords import picked
from ..core.names import checked_name
from ..core.retry import LONGEST_SECONDS, RetryPolicy
from ..runtime.invocation import HandlerInvoker
from ..runtime.keeper import checked_interval
from .message import Checkpoint
from .reader import READING_ORDERS
from .store import PartitionId

if TYPE_CHECKING:
    from .options import ProcessorOptions

STARTS = ("beginning", "end", "stored")
ON_ERROR = ("stop", "retry", "park", "dead_letter")
_LONGEST_ID = 100
_MOST_PARTITIONS = 256
_MOST_IN_A_BATCH = 10_000


USUAL_RETRIES = RetryPolicy(max_retries=3, base_delay_seconds=0.5, max_delay_seconds=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings:
    """How a processor works."""

    start_from: str | Checkpoint = "beginning"
    first_kept: Checkpoint | None = None
    types: tuple[str, ...] | None = None
    version: int = 1
    partitions: int = 1
    batch_size: int = 100
    order: str = "transaction"
    transactional: bool = True
    lease_seconds: float = 30.0
    heartbeat_seconds: float | None = None
    poll_seconds: float = 0.2
    retry_policy: RetryPolicy = USUAL_RETRIES
    on_error: str = "stop"


class Processor:
    """A handler with its settings, checked."""

    def __init__(self, processor_id: str, handler: Callable[..., Any], settings: ProcessorSettings) -> None:
        self.id = _checked_id(processor_id)
        if not callable(handler):
            raise ConfigurationError(f"Processor '{processor_id}': {handler!r} is no function that could be called.")
        self.handler = handler
        self.settings = settings
        _check(self.id, settings)
        self.invoker = HandlerInvoker(handler)

    @property
    def title(self) -> str:
        """Return what people call it."""
        return f"Processor '{self.id}' version {self.version}"

    @property
    def version(self) -> int:
        """Return the declared version."""
        return self.settings.version

    @property
    def partition_ids(self) -> list[PartitionId]:
        """Return the partitions, in order."""
        return [PartitionId(self.id, self.version, number) for number in range(self.settings.partitions)]

    def __repr__(self) -> str:
        return f"Processor({self.id!r}, version={self.version})"


def checked_settings(processor_id: str, given: ProcessorOptions) -> ProcessorSettings:
    """Return how a processor was declared.

    Raises:
        ConfigurationError: it cannot be so.
    """
    policy, transactional = given.get("retry_policy"), given.get("transactional", True)
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise ConfigurationError(
            f"Processor '{processor_id}': retry_policy={policy!r} must be a RetryPolicy(max_retries=…)."
        )
    if not isinstance(transactional, bool):
        raise ConfigurationError(f"Processor '{processor_id}': transactional={transactional!r} must be True or False.")
    if callable(processor_id):
        raise ConfigurationError('Write @hf.processor("id") with an id: its checkpoint is kept under it.')
    return replace(
        picked(ProcessorSettings, given),
        start_from=checked_start(processor_id, given.get("start_from", "beginning")),
        first_kept=checked_first_kept(processor_id, given.get("first_kept")),
        types=checked_types(processor_id, given.get("types")),
        retry_policy=policy or USUAL_RETRIES,
    )


def checked_start(processor_id: str, given: object) -> str | Checkpoint:
    """Return where a new processor starts.

    Raises:
        ConfigurationError: it is neither one of the words nor a checkpoint.
    """
    if isinstance(given, Checkpoint) or (isinstance(given, str) and given in STARTS):
        return given
    if isinstance(given, str) and ":" in given:
        return Checkpoint.parse(given)
    raise ConfigurationError(
        f"Processor '{processor_id}': start_from={given!r} is not known. Use 'beginning', 'end', 'stored', or a "
        "checkpoint such as Checkpoint(745, 12)."
    )


def checked_first_kept(processor_id: str, given: object) -> Checkpoint | None:
    """Return the message that is accepted as the first one.

    Raises:
        ConfigurationError: it is no checkpoint.
    """
    if given is None or isinstance(given, Checkpoint):
        return given
    try:
        return Checkpoint.parse(given)
    except ConfigurationError as error:
        raise ConfigurationError(f"Processor '{processor_id}': first_kept: {error}") from None


def checked_types(processor_id: str, given: Sequence[object] | None) -> tuple[str, ...] | None:
    """Return the wanted types, None for all.

    Raises:
        ConfigurationError: it is not a list of names.
    """
    if given is None:
        return None
    if isinstance(given, str) or not given or not all(isinstance(name, str) and name for name in given):
        raise ConfigurationError(
            f"Processor '{processor_id}': types={given!r} must be a list of message types, such as ['OrderPlaced']; "
            "leave it out for all."
        )
    return tuple(str(name) for name in given)


def _checked_id(processor_id: object) -> str:
    checked = checked_name("The processor id", processor_id)
    if len(checked) > _LONGEST_ID:
        raise ConfigurationError(
            f"The processor id '{checked[:40]}…' is too long: use at most {_LONGEST_ID} characters."
        )
    return checked


def _check(processor_id: str, settings: ProcessorSettings) -> None:
    for name, value, most in (
        ("version", settings.version, 2**31 - 1),
        ("partitions", settings.partitions, _MOST_PARTITIONS),
        ("batch_size", settings.batch_size, _MOST_IN_A_BATCH),
    ):
        if type(value) is not int or not 1 <= value <= most:
            raise ConfigurationError(
                f"Processor '{processor_id}': {name}={value!r} must be a whole number from 1 to {most:,}."
            )
    lengths: dict[str, object] = {"lease_seconds": settings.lease_seconds, "poll_seconds": settings.poll_seconds}
    for name, seconds in lengths.items():
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds <= LONGEST_SECONDS:  # type: ignore[operator] # it is a number
            raise ConfigurationError(
                f"Processor '{processor_id}': {name}={shown_key(seconds)} must be a number above 0, a century at most."
            )
    if settings.order not in READING_ORDERS:
        raise ConfigurationError(
            f"Processor '{processor_id}': order={settings.order!r} is not known: use one of {READING_ORDERS}."
        )
    if settings.on_error not in ON_ERROR:
        raise ConfigurationError(
            f"Processor '{processor_id}': on_error={settings.on_error!r} is not known: use one of {ON_ERROR}."
        )
    checked_interval(settings.heartbeat_seconds, settings.lease_seconds)
