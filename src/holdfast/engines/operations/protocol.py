"""The port between an engine's flow and whatever carries its operation out."""

from __future__ import annotations

from typing import Protocol

from ...core.errors import HandlerError, Unavailable
from ...runtime.invocation import Losable
from ..context import EngineContext
from ..messages import EngineMessage


class Operation(Protocol):
    """Carries out what a message asks for. The same message may come more than once."""

    def run(self, context: EngineContext, message: EngineMessage, lease: Losable) -> object:
        """Return the operation's output once it has ended: starting is not finishing.

        If the process dies here, the message comes again and the next call goes on with what is under way.

        Raises:
            AlreadyRunning: the singleton's instance is busy with something else: 409.
            LostLeaseError: the message is someone else's by now; the operation itself may go on.
            OperationFailed: the orchestration failed.
            HubUnavailable: the task hub does not answer.
        """
        ...


class HubUnavailable(Unavailable):
    """The task hub does not answer. The delivery is no attempt: the message comes again, uncounted."""


class OperationFailed(HandlerError):  # noqa: N818 - says what happened, like the store vocabulary
    """The orchestration failed, was terminated, or is gone. The next delivery starts it anew."""


class OperationTimedOut(OperationFailed):
    """The orchestration ran longer than it may and was terminated. The next delivery starts it anew."""
