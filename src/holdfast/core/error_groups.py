"""What is inside the groups in which ``asyncio.TaskGroup`` and others raise the errors of several tasks."""

from __future__ import annotations

from collections.abc import Iterator


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the errors of a group, and of groups inside it, in order; of any other error, that itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves_of(inner)]


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was raised from or while handling, and so on; of a group, of all of its leaves."""
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        behind = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        waiting += [] if behind is None else [behind]
        waiting += found.exceptions if isinstance(found, BaseExceptionGroup) else ()
