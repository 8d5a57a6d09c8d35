"""One budget of connections for the application's database, shared out to named pools of fixed sizes.

What must never wait has a pool of its own: beats, so that no handler and no claim can make a lease late; what the
workloads themselves ask, so that handlers that hold every connection of theirs can still enqueue and report. What is
left is the handlers'. The sizes add up to ``max_connections`` and no pool overflows, so the budget holds whatever runs.
Connections are asked for in one direction only: who holds one of the handlers' may wait for one of the workloads', and
nobody who holds one of those waits for another. SQLite has no server, and is exempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from ..core.config import DbConfig, ResolvedDbConfig, parse_url
from ..core.errors import ConfigurationError

MAX_CONNECTIONS = 8
_NO_SERVER = "sqlite"
_MYSQL = ("mysql", "mariadb")
_WISHED_FOR_NOTHING = next(each.default for each in fields(DbConfig) if each.name == "pool_size")


class PoolName(StrEnum):
    """What a pool is for."""

    BEATS = "beats"
    """Leases: taking and extending them, and the documents they are in. No statement is long, none waits for long."""
    LISTENING = "listening"
    """The one connection that is told of news, on PostgreSQL."""
    SOURCES = "sources"
    """Reading the rows of triggers on MariaDB and MySQL, in sessions whose time zone is UTC; elsewhere handlers' do."""
    WORK = "work"
    """Claims, reports, new jobs and messages, reading the outbox, checkpoints, records."""
    SERVING = "serving"
    """In a process that serves remote workers, and so runs no handlers: what these report."""
    HANDLERS = "handlers"
    """``hf.database``, every ``context.transaction`` and the rows of triggers."""


OURS = frozenset({PoolName.BEATS, PoolName.WORK, PoolName.SERVING})
"""The pools on which only statements of Holdfast's own are said."""
_RESERVED = {PoolName.BEATS: 1, PoolName.WORK: 2}
_LEAST_FOR_HANDLERS = 1


@dataclass(frozen=True, slots=True)
class Budget:
    """How many connections one process may have to a database, and who gets how many of them.

    Args:
        config: the database; its ``pool_size``, where one was chosen, bounds the handlers' pool further.
        max_connections: the sum.

    Raises:
        ConfigurationError: it is less than what is needed.
    """

    config: ResolvedDbConfig
    max_connections: int = MAX_CONNECTIONS
    _backend: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.max_connections) is not int or self.max_connections < 1:
            raise ConfigurationError(
                f"max_connections={self.max_connections!r} cannot be used: give a positive whole number."
            )
        object.__setattr__(self, "_backend", parse_url(self.config.connection_url).get_backend_name())
        reserved, least = self.reserved, sum(self.reserved.values()) + _LEAST_FOR_HANDLERS
        if self.is_bounded and self.max_connections < least:
            parts = " + ".join(f"{count} for {name}" for name, count in reserved.items())
            raise ConfigurationError(
                f"max_connections={self.max_connections} is too few: {parts} + {_LEAST_FOR_HANDLERS} for handlers are "
                f"{least}. Raise max_connections to {least} or more."
            )

    @property
    def is_bounded(self) -> bool:
        """Return whether there is a server whose connections count."""
        return self._backend != _NO_SERVER

    @property
    def reserved(self) -> dict[PoolName, int]:
        """Return what handlers cannot have, by pool."""
        special = {"postgresql": PoolName.LISTENING, **dict.fromkeys(_MYSQL, PoolName.SOURCES)}.get(self._backend)
        return _RESERVED if special is None else {**_RESERVED, special: 1}

    def size(self, name: PoolName) -> int:
        """Return how many connections a pool may have."""
        if not self.is_bounded:
            return self.config.pool_size
        left = self.max_connections - sum(self.reserved.values())
        if name is PoolName.SERVING:
            return max(1, left - 1)  # one is left to what is asked before and beside serving
        if name is PoolName.HANDLERS:
            wished = self.config.engine_kwargs.get("pool_size", self.config.pool_size)
            return left if wished == _WISHED_FOR_NOTHING else min(left, wished)
        return self.reserved[name]

    @property
    def for_handlers(self) -> int | None:
        """Return how many connections handlers have, None for no bound."""
        return self.size(PoolName.HANDLERS) if self.is_bounded else None

    def of(self, name: PoolName) -> PoolConfig:
        """Return the configuration of a pool."""
        values = {each: getattr(self.config, each) for each in DbConfig.__slots__}
        return PoolConfig(**values, pool=self._present(name), budget=self)

    def _present(self, name: PoolName) -> PoolName:
        """Return the pool that does another's work where there is none for it."""
        if name is PoolName.SOURCES and self._backend not in _MYSQL:
            return PoolName.HANDLERS
        return PoolName.WORK if name is PoolName.LISTENING and self._backend != "postgresql" else name


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PoolConfig(ResolvedDbConfig):
    """The configuration of one named pool: pools of different names are never shared."""

    pool: PoolName
    budget: Budget

    def sibling(self, name: PoolName) -> PoolConfig:
        """Return another pool of the same budget, over the same arguments."""
        return replace(self, pool=self.budget._present(name))

    @property
    def is_ours(self) -> bool:
        """Return whether only statements of Holdfast's own are said on it."""
        return self.pool in OURS

    @property
    def size(self) -> int:
        """Return how many connections it may have."""
        return self.budget.size(self.pool)
