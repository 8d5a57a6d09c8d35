"""Operations of a single step, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.errors import ConfigurationError
from ...core.handler_forms import is_generator
from ...core.invocation import HandlerInvoker, Losable
from ..context import EngineContext
from ..messages import EngineMessage


class InProcess:
    """Calls the handler with the context and the message, ``def`` or ``async def``.

    If the process dies meanwhile, the message comes again and the handler begins anew.

    Raises:
        ConfigurationError: the handler has a ``yield``.
    """

    def __init__(self, handler: Callable[..., Any]) -> None:
        if is_generator(handler):
            raise ConfigurationError(
                f"Handler '{getattr(handler, '__qualname__', handler)}' is a generator (it has a yield), so calling it "
                "runs nothing. Make it an orchestrator with DurableTasks, or remove the yield."
            )
        self.handler = handler
        self._invoker = HandlerInvoker(lambda messages, context: handler(context, messages[0]))

    def run(self, context: EngineContext, message: EngineMessage, lease: Losable) -> object:
        """Return the handler's answer. Its own exceptions come through unchanged.

        Raises:
            LostLeaseError: an async handler was cancelled because the message was lost.
        """
        return self._invoker.invoke([message], context, lease)
