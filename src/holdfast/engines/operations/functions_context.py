"""The context of azure-functions-durable 1.x with durabletask's signatures.

What 1.x cannot do is refused with a sentence when it is asked for: an orchestrator that is silently different on two
backends is worse than one that does not run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigurationError
from .functions_tasks import AllTasks, FunctionsTask
from .generator_bridge import NothingToWaitFor
from .instances import continued_input

if TYPE_CHECKING:
    from durabletask.task import ReplaySafeLogger, RetryPolicy


class FunctionsContext:
    """What an orchestrator written for durabletask is given inside Azure Functions."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.given = context.get_input()

    @property
    def instance_id(self) -> str:
        """Return the id of the orchestration."""
        return str(self._context.instance_id)

    @property
    def parent_instance_id(self) -> str | None:
        """Return the id of the orchestration that started this one, None when none did."""
        return self._context.parent_instance_id or None

    @property
    def version(self) -> str | None:
        """Return the version the orchestration was started with."""
        return getattr(self._context, "version", None) or None

    @property
    def current_utc_datetime(self) -> datetime:
        """Return the time, the same at every replay: UTC without a time zone, as durabletask has it."""
        return _naive(self._context.current_utc_datetime)

    @property
    def is_replaying(self) -> bool:
        """Return whether what happens now has happened before."""
        return bool(self._context.is_replaying)

    def set_custom_status(self, custom_status: Any) -> None:
        """Show a status beside the orchestration's own."""
        self._context.set_custom_status(custom_status)

    def new_uuid(self) -> str:
        """Return a UUID that is the same at every replay."""
        return str(self._context.new_uuid())

    def create_replay_safe_logger(self, logger: logging.Logger) -> ReplaySafeLogger:
        """Return a logger that is silent during replays."""
        from durabletask.task import ReplaySafeLogger

        return ReplaySafeLogger(logger, lambda: self.is_replaying)

    def call_activity(
        self,
        activity: Callable[..., Any] | str,
        *,
        input: Any = None,
        retry_policy: RetryPolicy | None = None,
        tags: dict[str, str] | None = None,
        return_type: type | None = None,
    ) -> FunctionsTask:
        """Schedule an activity."""
        _refuse(tags=tags)
        name = _name(activity)
        if retry_policy is None:
            return FunctionsTask(self._context.call_activity(name, input), return_type)
        options = _retry_options(retry_policy)
        return FunctionsTask(self._context.call_activity_with_retry(name, options, input), return_type)

    def call_sub_orchestrator(
        self,
        orchestrator: Callable[..., Any] | str,
        *,
        input: Any = None,
        instance_id: str | None = None,
        retry_policy: RetryPolicy | None = None,
        version: str | None = None,
        return_type: type | None = None,
    ) -> FunctionsTask:
        """Schedule another orchestrator."""
        _refuse(version=version)
        name = _name(orchestrator)
        if retry_policy is None:
            return FunctionsTask(self._context.call_sub_orchestrator(name, input, instance_id), return_type)
        options = _retry_options(retry_policy)
        raw = self._context.call_sub_orchestrator_with_retry(name, options, input, instance_id)
        return FunctionsTask(raw, return_type)

    def create_timer(self, fire_at: datetime | timedelta) -> FunctionsTask:
        """Return a task that ends at a time, or after one."""
        now: datetime = self._context.current_utc_datetime
        if isinstance(fire_at, timedelta):
            return FunctionsTask(self._context.create_timer(now + fire_at))
        moment = _naive(fire_at)
        return FunctionsTask(self._context.create_timer(moment if now.tzinfo is None else moment.replace(tzinfo=UTC)))

    def wait_for_external_event(self, name: str, *, data_type: type | None = None) -> FunctionsTask:
        """Return a task that ends when the event is raised, with what came with it."""
        return FunctionsTask(self._context.wait_for_external_event(name), data_type)

    def continue_as_new(self, new_input: Any, *, save_events: bool = False, new_version: str | None = None) -> None:
        """Continue with a new input and a history that begins again."""
        _refuse(save_events=save_events, new_version=new_version)
        self._context.continue_as_new(continued_input(self.given, new_input))

    def when_all(self, tasks: Sequence[FunctionsTask]) -> FunctionsTask | NothingToWaitFor:
        """Return a task that ends when each of them has ended."""
        if not tasks:
            return NothingToWaitFor()
        return AllTasks(self._context.task_all([task.raw for task in tasks]), tasks)

    def when_any(self, tasks: Sequence[FunctionsTask]) -> FunctionsTask:
        """Return a task that ends with the first of them that ends."""
        return FunctionsTask(self._context.task_any([task.raw for task in tasks]), children=tasks)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"The orchestrator uses '{name}', which azure-functions-durable 1.x does not have, or has in a form of its "
            "own. Do without it, or run the orchestrator on a task hub."
        )


def _naive(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _name(function: Any) -> Any:
    """Return the name of an activity or orchestrator. What Functions' decorators return, Functions knows itself."""
    if isinstance(function, str) or not hasattr(function, "__name__"):
        return function
    return function.__name__


def _refuse(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise ConfigurationError(f"azure-functions-durable 1.x has no {name}: leave it out, or use a task hub.")


def _retry_options(policy: RetryPolicy) -> Any:
    from azure.durable_functions import RetryOptions

    _refuse(retry_timeout=policy.retry_timeout)

    class Options(RetryOptions):  # type: ignore[misc]  # the package has no types
        """The host knows more settings than the package of 1.x sends."""

        def to_json(self) -> dict[str, Any]:
            options: dict[str, Any] = super().to_json()
            options["backoffCoefficient"] = policy.backoff_coefficient or 1.0
            if policy.max_retry_interval is not None:
                options["maxRetryIntervalInMilliseconds"] = _milliseconds(policy.max_retry_interval)
            return options

    return Options(_milliseconds(policy.first_retry_interval), policy.max_number_of_attempts)


def _milliseconds(interval: timedelta) -> int:
    return max(1, round(interval.total_seconds() * 1000))
