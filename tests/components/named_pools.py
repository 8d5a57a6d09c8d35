"""The named pools of an application's database, for tests that need one without the application."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from holdfast.core.config import ResolvedDbConfig
from holdfast.database.budget import Budget, PoolName
from holdfast.database.pools import EngineProvider, Pools


def named_engine(url: str, pool: PoolName = PoolName.WORK, connect_args: dict[str, object] | None = None) -> Engine:
    """Return the engine of a named pool that nobody else has; the caller disposes of it."""
    config = ResolvedDbConfig(connection_url=url, connect_args=connect_args)
    return Pools(EngineProvider(), Budget(config)).engine(pool)
