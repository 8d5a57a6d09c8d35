"""Sinks load their client library when they are made, so that whoever does not use one need not have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...core.errors import MissingDependencyError


@contextmanager
def needed(sink: str, package: str, extra: str) -> Iterator[None]:
    """Say what to install when an import in the block fails.

    Raises:
        MissingDependencyError: the package is not there.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(f"{sink} needs {package}: run \"pip install 'holdfast[{extra}]'\".") from error
