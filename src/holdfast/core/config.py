"""Where a database is and how to connect to it, with secrets kept out of every text."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import ConfigurationError

# The lookahead leaves percent-encoding alone: in "p%40ss%2Fw" the part between the percent signs is no variable.
_ENV_TOKEN = re.compile(r"%%|%(?![0-9A-Fa-f]{2}\w*%[0-9A-Fa-f]{2})([A-Za-z_]\w*)%")
_HALF_TOKEN = re.compile(r"(%\w+|\w+%)\Z")
_OUR_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_HARMLESS_QUERY_KEYS = frozenset(
    {
        "application_name",
        "charset",
        "connect_timeout",
        "driver",
        "encrypt",
        "host",
        "mode",
        "port",
        "sslmode",
        "timeout",
    }
)


def resolve_env_vars(value: str) -> str:
    """Replace each ``%NAME%`` by the environment variable of that name; ``%%`` stands for one percent sign.

    Raises:
        ConfigurationError: a variable is not set.
    """

    def replacement(match: re.Match[str]) -> str:
        if match.group(0) == "%%":
            return "%"
        name = match.group(1)
        if name not in os.environ:
            raise ConfigurationError(
                f"Environment variable '{name}' is not set, but a setting refers to it as %{name}%. Set it, or write "
                "%% where a plain percent sign is meant."
            )
        return os.environ[name]

    return _ENV_TOKEN.sub(replacement, value)


def _resolved_url(written: str) -> str:
    """Return a URL with its environment variables filled in.

    Raises:
        ConfigurationError: one is not set, or holds what makes no URL: the message names it, never its value.
    """
    resolved = resolve_env_vars(written)
    names = [match.group(1) for match in _ENV_TOKEN.finditer(written) if match.group(1)]
    for name in names:
        value = os.environ[name]
        if not value.strip():
            raise ConfigurationError(f"Environment variable '{name}' is empty, but the database URL refers to it.")
        if value != value.strip():
            raise ConfigurationError(
                f"Environment variable '{name}', which the database URL refers to, begins or ends with white space "
                "(a newline, perhaps). Remove it."
            )
    if names:
        try:
            parse_url(resolved)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} It comes from {', '.join(f'%{name}%' for name in names)}.") from None
    return resolved


def parse_url(text: str) -> URL:
    """Return the URL with our driver filled in where it names none (psycopg 3 for PostgreSQL, pymysql for MySQL).

    Raises:
        ConfigurationError: it is not a database URL. The message never holds the text, which may hold a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        if _HALF_TOKEN.match(text):
            raise ConfigurationError(
                f"{text!r} is not a database URL. If it names an environment variable, write it as %{text.strip('%')}%."
            ) from None
        raise _unparsable() from None  # the cause may quote a part of the password
    if url.host and "@" in f"{url.host}{url.database}":  # the rest of a password that was cut at its first @
        raise _unparsable()
    return url.set(drivername=_OUR_DRIVERS.get(url.drivername, url.drivername))


def _unparsable() -> ConfigurationError:
    return ConfigurationError(
        "The database URL cannot be parsed. Write it as dialect://user:password@host:port/database, for example "
        "sqlite:///shop.db or postgresql://app@localhost/shop; a special character in the password must be "
        "percent-encoded."
    )


def safe_url(url: str | URL) -> str:
    """Return the URL as it may be shown to people: without password, and without query values that may hold one."""
    parsed = parse_url(url) if isinstance(url, str) else url
    hidden = {key: "***" for key in parsed.query if key.lower() not in _HARMLESS_QUERY_KEYS}
    if hidden:
        parsed = parsed.update_query_dict(hidden)
    return parsed.render_as_string(hide_password=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DbConfig:
    """How to reach one database. ``repr`` shows no password and no connect arguments."""

    connection_url: str
    pool_size: int = 5
    pool_recycle: int = 3600
    echo: bool = False
    connect_args: dict[str, object] | None = None
    engine_kwargs: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        try:
            shown = safe_url(self.connection_url)
        except ConfigurationError:
            shown = "<not a URL>"
        return f"DbConfig({shown!r}, pool_size={self.pool_size})"


class ResolvedDbConfig(DbConfig):
    """A configuration whose environment variables are filled in: a percent sign left in it is meant as one."""

    __slots__ = ()
    __repr__ = DbConfig.__repr__

    @classmethod
    def of(cls, config: DbConfig) -> ResolvedDbConfig:
        """Return ``config`` with its environment variables filled in, once."""
        if isinstance(config, ResolvedDbConfig):
            return config
        fields = {name: getattr(config, name) for name in DbConfig.__slots__}
        return cls(**{**fields, "connection_url": _resolved_url(config.connection_url)})


def resolve_db_config(*, url: str | None, db_config: DbConfig | None) -> ResolvedDbConfig:
    """Return one configuration from either form, with environment variables filled in.

    Raises:
        ConfigurationError: both were given, or neither.
    """
    if url is not None and db_config is not None:
        raise ConfigurationError("url and db_config are mutually exclusive: pass one of them.")
    if db_config is not None:
        if not isinstance(db_config, DbConfig):
            raise ConfigurationError(
                f"db_config must be a DbConfig, not {type(db_config).__name__}. Pass a URL as url=…"
            )
        return ResolvedDbConfig.of(db_config)
    if url is None:
        raise ConfigurationError("exactly one of url or db_config is required.")
    if not isinstance(url, str):
        raise ConfigurationError(f"url must be text, not {type(url).__name__}.")
    if not url:
        raise ConfigurationError("url must not be empty: write for example sqlite:///shop.db.")
    return ResolvedDbConfig(connection_url=_resolved_url(url))
