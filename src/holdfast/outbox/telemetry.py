"""What a processor tells about itself: logs and metrics, around the steps and not inside them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.engine import Engine

from ..core.errors import CheckpointMismatchError, DbError, LeaseConflictError, LostLeaseError
from ..core.redaction import public
from ..core.telemetry import MetricsCollector, SafeCollector
from ..records.database import translated
from .course import Aside
from .message import Message
from .outcomes import Skip

if TYPE_CHECKING:
    from .runner import PartitionRunner

_log = logging.getLogger("holdfast.processor")
_DELIVERED = "holdfast_processor_messages_total"
_FAILURES = "holdfast_processor_failures_total"
_DEAD = "holdfast_processor_dead_letters_total"


class ProcessorTelemetry:
    """Logs and counts what processors do."""

    def __init__(self, metrics: MetricsCollector | None) -> None:
        self._metrics = SafeCollector(metrics)

    @contextmanager
    def step(self, runner: PartitionRunner) -> Iterator[None]:
        """Log a step that failed, once, however it failed."""
        try:
            yield
        except LeaseConflictError:
            raise
        except (CheckpointMismatchError, LostLeaseError) as error:
            self._count(_FAILURES, runner, 1, error_type=type(error).__name__)
            _log.warning("%s", error, extra=_fields(runner, "checkpoint_mismatch"))
            raise
        except Exception as error:
            self._count(_FAILURES, runner, 1, error_type=type(error).__name__)
            _log.error("%s did not complete a step: %s", runner.title, error, extra=_fields(runner, "step_failed"))
            raise

    @contextmanager
    def database(self, engine: Engine) -> Iterator[None]:
        """Turn a driver's errors into ours."""
        with translated(engine, writes=True):
            yield

    def delivered(self, runner: PartitionRunner, messages: int, *, skipped: Skip | None) -> None:
        """Note a batch that is done."""
        self._count(_DELIVERED, runner, messages, result="skipped" if skipped else "done")
        if skipped is not None:
            _log.info(
                "%s skipped %d messages: %s", runner.title, messages, public(skipped.reason) or "no reason was given",
                extra=_fields(runner, "batch_skipped"),
            )  # fmt: skip
        elif _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s delivered %d messages", runner.title, messages, extra=_fields(runner, "batch_delivered"))

    def retrying(self, runner: PartitionRunner, error: Exception, attempt: int, delay_seconds: float) -> None:
        """Note that a handler failed and is tried again."""
        self._count(_FAILURES, runner, 1, error_type=type(error).__name__)
        _log.warning(
            "The handler of %s failed at try %d (%s); trying again in %.2f s",
            runner.title,
            attempt,
            error,
            delay_seconds,
            exc_info=error.__cause__ if _log.isEnabledFor(logging.DEBUG) else None,
            extra=_fields(runner, "handler_retry"),
        )

    @contextmanager
    def log_unrecorded(self, runner: PartitionRunner) -> Iterator[None]:
        """Log that a failure could not be recorded: that keeps nobody from trying again."""
        try:
            yield
        except DbError as error:
            _log.warning(
                "That %s failed could not be recorded: %s", runner.title, error, extra=_fields(runner, "unrecorded")
            )

    def passed_by(self, runner: PartitionRunner, asides: Sequence[Aside]) -> None:
        """Note messages that were passed and not delivered: each that failed, and how many wait behind one that did."""
        for aside in asides:
            if aside.failed is not None:
                self.buried(runner, aside.message, aside.failed.error, is_parked=aside.is_parked)
        waiting = sum(aside.failed is None for aside in asides)
        if waiting:
            _log.warning(
                "%d messages of %s wait behind others of their keys that failed; they are among the dead letters",
                waiting, runner.title, extra=_fields(runner, "parked"),
            )  # fmt: skip

    def buried(self, runner: PartitionRunner, message: Message, error: Exception, *, is_parked: bool = False) -> None:
        """Note that a message became a dead letter."""
        self._count(_DEAD, runner, 1)
        _log.error(
            "%s could not handle message %s (%s): it is a dead letter now, and %s",
            runner.title,
            message.message_id,
            error,
            "later ones of its key wait" if is_parked else "the next ones go on",
            extra=_fields(runner, "dead_letter"),
        )

    def stopped(self, runner: PartitionRunner, reason: str) -> None:
        """Note that a processor was stopped."""
        _log.error(
            "%s was stopped: %s. Nothing is delivered until 'holdfast processor resume %s'",
            runner.title,
            reason.rstrip("."),
            runner.id.processor_id,
            extra=_fields(runner, "stopped"),
        )

    def release_failed(self, runner: PartitionRunner, error: Exception) -> None:
        """Note that the lease could not be given back; it frees itself when it runs out."""
        _log.warning(
            "The lease of %s could not be released and frees itself when it runs out: %s",
            runner.title,
            error,
            extra=_fields(runner, "lease_release_failed"),
        )

    def _count(self, metric: str, runner: PartitionRunner, value: float, **labels: str) -> None:
        self._metrics.increment(metric, value, labels={"processor_id": runner.id.processor_id, **labels})


def _fields(runner: PartitionRunner, event: str) -> Mapping[str, object]:
    return {
        "event": event,
        "processor_id": runner.id.processor_id,
        "processor_version": runner.id.version,
        "partition": runner.id.partition,
    }
