"""The database and table a decorated handler reads or writes, checked when the decorator is applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..binding.reader import DbReader
from ..binding.upsert import check_conflict_columns, check_upsert_dialect
from ..binding.writer import DbWriter
from ..core.config import DbConfig, parse_url, resolve_env_vars
from ..core.errors import ConfigurationError
from ..database.pools import EngineProvider, check_engine_provider
from .metadata import shown_url

_WRITING = ("output", "inject_writer")


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Where to read or write. ``kind`` is the decorator's name, for messages.

    Raises:
        ConfigurationError: not exactly one of ``url`` and ``db_config`` is given, it is no URL, a text is empty, or
            there is no table to write to.
    """

    kind: str
    url: str | None
    db_config: DbConfig | None
    table: str | None
    schema: str | None
    engine_provider: EngineProvider | None

    def __post_init__(self) -> None:
        for broken, message in (
            ((self.url is None) == (self.db_config is None), "pass exactly one of url and db_config."),
            (self.url == "", "url must not be empty: write for example sqlite:///shop.db or %DB_URL%."),
            (self.table == "", "table must not be empty."),
            (self.table is None and self.kind in _WRITING, "pass table=…, the table to write to."),
        ):
            if broken:
                raise ConfigurationError(f"{self.kind}: {message}")
        if self.db_config is not None and not isinstance(self.db_config, DbConfig):
            raise ConfigurationError(f"{self.kind}: db_config must be a DbConfig; pass a URL as url=…")
        check_engine_provider(self.engine_provider)
        shown_url(self._written)  # refuses what is no URL

    @property
    def _written(self) -> str:
        return self.db_config.connection_url if self.db_config is not None else self.url or ""

    @property
    def settings(self) -> dict[str, Any]:
        """Return what readers, writers and outputs are made with."""
        return {
            "url": self.url,
            "db_config": self.db_config,
            "table": self.table,
            "schema": self.schema,
            "engine_provider": self.engine_provider,
        }

    def reader(self) -> DbReader:
        """Return a new reader."""
        return DbReader(**self.settings)

    def writer(self) -> DbWriter:
        """Return a new writer."""
        return DbWriter(**self.settings)

    def check_upsert(self, conflict_columns: object) -> None:
        """Check what can be known of an upsert before there is a connection.

        Raises:
            ConfigurationError: there are no ``conflict_columns``, or the URL names a dialect without upsert.
        """
        if not conflict_columns:
            raise ConfigurationError(
                f"{self.kind}: action='upsert' needs conflict_columns=[…], the columns that name a row."
            )
        check_conflict_columns(conflict_columns)
        try:
            url = parse_url(resolve_env_vars(self._written))
        except ConfigurationError:
            return  # a setting is missing or wrong now: it may be right when the handler is called
        check_upsert_dialect(url.get_backend_name())
