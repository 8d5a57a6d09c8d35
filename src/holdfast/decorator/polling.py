"""What ``DbBindings.trigger`` polls with: a source that was passed, or a table of messages that is looked up later."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..core.config import DbConfig, resolve_db_config
from ..core.errors import ConfigurationError
from ..core.keywords import options_of
from ..database.pools import EngineProvider
from ..trigger.poll import PollTrigger
from ..trigger.sources.outbox import OutboxSource, check_strategy
from ..trigger.sources.outbox_columns import OutboxDefinition
from ..trigger.sources.protocol import SimpleSource, SourceAdapter, adapted
from ..trigger.sources.sqlalchemy import SqlAlchemySource
from .outbox_triggers import OutboxLookup, OutboxTrigger

shared_engines = EngineProvider()
"""The pools of everything that was given no provider of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingSettings:
    """How a trigger's function is called, and what it polls."""

    model: type | None = None
    updates: str | None = None
    strategy: str = "cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxTable:
    """Where a table of messages is, and which of them are read."""

    url: str | None = None
    db_config: DbConfig | None = None
    engine_provider: EngineProvider | None = None
    schema: str | None = None
    where: str | None = None
    parameters: dict[str, object] | None = None
    horizon: str | None = None
    lookback: timedelta | float | None = None


def polling(
    strategy: str,
    source: SourceAdapter | SimpleSource | str,
    columns: OutboxDefinition,
    outbox: OutboxTable,
    *,
    name: str,
    **settings: Any,
) -> PollTrigger:
    """Return what polls: a source that was passed, or an outbox table with the settings that were given.

    Raises:
        ConfigurationError: strategy, source and settings do not go together.
    """
    given = {name: value for name, value in options_of(OutboxTable, outbox).items() if value is not None}
    table, own = (source, None) if isinstance(source, str) else ("", source)
    check_strategy(name, strategy, columns, {"table": table, "source": own, "horizon": "auto", **given})
    if strategy == "outbox":
        if ("url" in given) == ("db_config" in given):
            raise ConfigurationError(f"trigger '{name}': an outbox needs url=… or db_config=…, one of them.")
        lookup = OutboxLookup(functools.partial(_outbox_source, table, columns, given))
        return OutboxTrigger(name=name, table=table, lookup=lookup, **settings)
    if given:
        raise ConfigurationError(
            f"trigger '{name}': {min(given)}=… is for strategy='outbox'. Say it of the source, in SqlAlchemySource(…)."
        )
    return PollTrigger(name=name, source=source, **settings)  # type: ignore[arg-type]  # a text is refused there


def finding(source: SourceAdapter | SimpleSource | str, trigger: PollTrigger) -> Callable[[], SourceAdapter]:
    """Return what finds the source of a trigger, which of an outbox is looked up only then."""
    if isinstance(trigger, OutboxTrigger):
        return trigger.lookup.source
    return functools.partial(adapted, source)  # type: ignore[arg-type]  # a text is an outbox


def _outbox_source(table: str, columns: OutboxDefinition, given: dict[str, Any]) -> SourceAdapter:
    others = {"engine_provider": shared_engines, **given}
    config = resolve_db_config(url=others.pop("url", None), db_config=others.pop("db_config", None))
    return OutboxSource(columns, table=table, db_config=config, **others)


def trust_updates(source: SourceAdapter | SimpleSource | str) -> None:
    """Take the application's word that every update moves the cursor of a source.

    Raises:
        ConfigurationError: it has no cursor column.
    """
    if not isinstance(source, SqlAlchemySource):
        raise ConfigurationError(
            f"trigger: updates='trusted' is about a cursor column, but the source is {type(source).__name__}. Leave it "
            "out."
        )
    source.trust_updates()
