"""A handler under ``trigger``: one poll around each call, the changes passed by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import ConfigurationError
from ..core.events import RowChange
from ..core.handler_forms import is_generator
from ..trigger.poll import PollTrigger
from .models import to_model
from .signatures import hide, named, visible_signature


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange(RowChange):
    """A change whose row is also an object of the user's model."""

    row: Any = None


def with_model(event: RowChange, model: type) -> ModelChange:
    """Return the event with its row as an object.

    Raises:
        SerializationError: the row does not fit the model; the batch is not committed.
    """
    return ModelChange(
        event_id=event.event_id,
        op=event.op,
        source=event.source,
        cursor=event.cursor,
        pk=event.pk,
        before=event.before,
        after=event.after,
        metadata=event.metadata,
        row=to_model(model, event.after or {}),
    )


def triggered(
    function: Callable[..., Any], trigger: PollTrigger, arg_name: str, model: type | None
) -> Callable[..., Any]:
    """Return a wrapper that polls on each call and passes events (and context, if the handler names one).

    Raises:
        ConfigurationError: the handler is a generator: calling it would run nothing, and its events count as handled.
    """
    if is_generator(function):
        name = getattr(function, "__name__", "handler")
        raise ConfigurationError(f"trigger: '{name}' has a yield, so that calling it runs nothing. Remove the yield.")
    parameters = visible_signature(function).parameters
    takes_context = "context" in parameters
    filled = {arg_name, "context"} if takes_context else {arg_name}
    host_arguments = named(function, filled)

    def call_arguments(given: dict[str, Any], events: list[RowChange], context: Any) -> dict[str, Any]:
        shown: list[Any] = list(events) if model is None else [with_model(event, model) for event in events]
        return given | {arg_name: shown} | ({"context": context} if takes_context else {})

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> None:
            given = host_arguments(args, kwargs)

            async def handle(events: list[RowChange], context: Any) -> None:
                await function(**call_arguments(given, events, context))

            await trigger.run_async(timer=next(iter(given.values()), None), handler=handle)

        wrapper: Callable[..., Any] = async_wrapper
    else:

        @functools.wraps(function)
        def sync_wrapper(*args: Any, **kwargs: Any) -> None:
            given = host_arguments(args, kwargs)
            trigger.run(
                timer=next(iter(given.values()), None),
                handler=lambda events, context: function(**call_arguments(given, events, context)),
            )

        wrapper = sync_wrapper
    hide(wrapper, function, filled)
    return wrapper
