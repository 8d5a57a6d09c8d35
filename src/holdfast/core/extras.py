"""What only some users need is not installed for all: where it is asked for, its absence is one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingDependencyError


@contextmanager
def needed(who_needs_what: str, extra: str) -> Iterator[None]:
    """Say what to install when an import in the block fails.

    Raises:
        MissingDependencyError: the package is not there.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(f"{who_needs_what}: run \"pip install 'holdfast[{extra}]'\".") from error
