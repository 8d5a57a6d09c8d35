"""The tasks of azure-functions-durable 1.x, in the form that durabletask gives its own.

What an orchestrator yields is unwrapped for the Functions runtime, and what comes back is wrapped again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from durabletask.serialization import JsonDataConverter
from durabletask.task import TaskFailedError

_converter = JsonDataConverter()


class FunctionsTask:
    """One task, or the first of several (``when_any``), as an orchestrator sees it."""

    def __init__(self, raw: Any, return_type: type | None = None, children: Sequence[FunctionsTask] = ()) -> None:
        self.raw = raw
        self._return_type = return_type
        self._children = tuple(children)
        self.is_cancelled = False

    @property
    def is_complete(self) -> bool:
        """Return whether it has ended, well or not."""
        return self.is_cancelled or bool(self.raw.is_completed)

    @property
    def is_failed(self) -> bool:
        """Return whether it has failed."""
        return bool(self.raw.state.name == "FAILED")

    @property
    def result(self) -> Any:
        """Return what it ended with.

        Raises:
            TaskFailedError: it has failed.
            ValueError: it has not ended.
        """
        return self.get_result()

    def get_result(self) -> Any:
        """Return what it ended with.

        Raises:
            TaskFailedError: it has failed.
            ValueError: it has not ended.
        """
        if not self.is_complete:
            raise ValueError("The task has not completed.")
        if self.is_failed:
            raise self.get_exception()
        return self._checked(self.raw.result)

    def get_exception(self) -> TaskFailedError:
        """Return what it failed with.

        Raises:
            ValueError: it has not failed.
        """
        if not self.is_failed:
            raise ValueError("The task has not failed.")
        return failure(self.raw.result)

    def cancel(self) -> bool:
        """Cancel a timer; return whether that came in time. Other tasks cannot be cancelled in Functions."""
        if self.is_complete or not hasattr(self.raw, "cancel"):
            return False
        self.raw.cancel()
        self.is_cancelled = True
        return True

    def wait(self) -> Generator[Any, Any, Any]:
        """Yield to the Functions runtime until the task has ended, and return its result."""
        try:
            answer = yield self.raw
        except Exception as error:
            raise failure(error) from error
        return self._checked(answer)

    def _checked(self, answer: Any) -> Any:
        """Return a result as durabletask gives it: the first of several is the task that was passed in."""
        for child in self._children:
            if answer is child.raw:
                return child
        return answer if self._return_type is None else _converter.coerce(answer, self._return_type)


class AllTasks(FunctionsTask):
    """All of several (``when_all``). Ends when each has ended, even if one fails early: Functions would not wait."""

    def __init__(self, raw: Any, children: Sequence[FunctionsTask]) -> None:
        super().__init__(raw)
        self._all = tuple(children)

    def wait(self) -> Generator[Any, Any, Any]:
        """Yield to the Functions runtime until each has ended, and return their results in order."""
        try:
            yield self.raw
        except Exception as error:
            yield from self._rest()
            raise failure(error) from error
        return [child.get_result() for child in self._all]

    def _rest(self) -> Generator[Any, Any, None]:
        for child in self._all:
            while not child.is_complete:
                try:
                    yield child.raw
                except Exception:  # the first failure is the one that is reported
                    break

    def get_result(self) -> Any:
        """Return the results in order.

        Raises:
            TaskFailedError: one has failed.
            ValueError: not every one has ended.
        """
        super().get_result()
        return [child.get_result() for child in self._all]


def failure(error: Exception) -> TaskFailedError:
    """Return a failed task's error, as orchestrators written for durabletask catch it."""
    return TaskFailedError(str(error).strip(), error)
