"""What a trigger is made of, checked when it is made: a wrong kind of thing would come up in the middle of a tick."""

from __future__ import annotations

from ..core.errors import ConfigurationError
from ..state.foreign import ForeignStateStore
from ..state.store import StateStore
from .sources.protocol import SimpleSource, SourceAdapter


def check_counts(**settings: object) -> None:
    """Check settings that are numbers of at least 1.

    Raises:
        ConfigurationError: one is no number.
        ValueError: one is less than 1.
    """
    for name, value in settings.items():
        kinds = (int, float) if name.endswith("_seconds") else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigurationError(f"{name} must be a number, not {value!r}.")
        if value < 1:
            raise ValueError(f"{name} must be >= 1")


def check_parts(source: object, state_store: object, retry_policy: object) -> None:
    """Check that source, store and retry policy are such.

    Raises:
        ConfigurationError: one is something else; the message says what to pass.
    """
    check_source(source)
    if not isinstance(state_store, (StateStore, ForeignStateStore)):
        is_document_store = hasattr(state_store, "read") and hasattr(state_store, "replace")
        hint = "Wrap it: StateStore(…)" if is_document_store else "Pass a BlobCheckpointStore or a StateStore."
        raise ConfigurationError(f"checkpoint_store must be a state store, not {type(state_store).__name__}. {hint}")
    if retry_policy is not None and not hasattr(retry_policy, "delay_for_attempt"):
        raise ConfigurationError(
            f"retry_policy must be a RetryPolicy, not {retry_policy!r}. Write for example RetryPolicy(max_retries=3)."
        )


def check_source(source: object) -> None:
    """Check that changes can be read from it.

    Raises:
        ConfigurationError: it is no source.
    """
    if not isinstance(source, (SourceAdapter, SimpleSource)):
        raise ConfigurationError(
            f"source must be a source of changes, such as SqlAlchemySource, not {type(source).__name__}."
        )
