"""Operations of a single step, in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...core.errors import AlreadyRunning, ConfigurationError, HandlerError, LostLeaseError
from ...core.handler_forms import is_generator
from ...database.error_text import error_text
from ...runtime.invocation import HandlerInvoker, Losable
from ..context import EngineContext
from ..messages import EngineMessage
from .protocol import HubUnavailable


class InProcess:
    """Calls the handler with the context and the message, or with the message alone; ``def`` or ``async def``.

    If the process dies meanwhile, the message comes again and the handler begins anew.

    Raises:
        ConfigurationError: the handler has a ``yield``, or takes something else.
    """

    def __init__(self, handler: Callable[..., Any]) -> None:
        if is_generator(handler):
            raise ConfigurationError(
                f"Handler '{_name(handler)}' is a generator (it has a yield), so calling it runs nothing. Make it an "
                "orchestrator with DurableTasks, or remove the yield."
            )
        self.handler = handler
        if _takes(handler, 2):
            self._invoker = HandlerInvoker(lambda messages, context: handler(context, messages[0]), original=handler)
        elif _takes(handler, 1):
            self._invoker = HandlerInvoker(lambda messages, context: handler(messages[0]), original=handler)
        else:
            raise ConfigurationError(
                f"Handler '{_name(handler)}' cannot be called with the context and the message. Write "
                "def operation(context, message), or def operation(message)."
            )

    def run(self, context: EngineContext, message: EngineMessage, lease: Losable) -> object:
        """Return the handler's answer. Its own exceptions come through.

        Raises:
            LostLeaseError: an async handler was cancelled because the message was lost.
            HandlerError: the handler raised what would be taken for our own word about the message.
        """
        try:
            return self._invoker.invoke([message], context, lease)
        except LostLeaseError as error:
            if lease.lost.is_set():
                raise
            raise HandlerError(error_text(error)) from error
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, (AlreadyRunning, HubUnavailable)):
                raise
            raise HandlerError(error_text(error)) from error


def _takes(handler: Callable[..., Any], count: int) -> bool:
    """Return whether the handler can be called with so many arguments."""
    try:
        inspect.signature(handler).bind(*([None] * count))
    except TypeError:
        return False
    except ValueError:  # nobody can tell
        return count == 2
    return True


def _name(handler: Callable[..., Any]) -> str:
    return str(getattr(handler, "__qualname__", handler))
