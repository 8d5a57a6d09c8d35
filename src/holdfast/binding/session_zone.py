"""Moments in a TIMESTAMP of MariaDB or MySQL: it takes what it is given for the local time of the session's zone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy import Table
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection

from ..core.errors import WriteError
from ..database.text_times import has_zone

_ZONE = "holdfast_zone"
_UTC = frozenset({"UTC", "Etc/UTC", "+00:00"})


def require_utc_for_moments(connection: Connection, table: Table, rows: Iterable[Mapping[str, object]]) -> None:
    """Check that a moment with a zone, which is sent in UTC, will be taken for one in UTC.

    Raises:
        WriteError: the session is in another zone; the message says what to do.
    """
    if connection.dialect.name not in ("mysql", "mariadb"):
        return
    stamps = [column.name for column in table.c if isinstance(getattr(column.type, "stored", None), mysql.TIMESTAMP)]
    name = next((name for name in stamps if any(_has_zone(row.get(name)) for row in rows)), None)
    zone = "UTC" if name is None else _zone_of(connection)
    if zone not in _UTC:
        raise WriteError(
            f"Column '{name}' is a TIMESTAMP, which this session keeps in its own zone {zone}, so a time with a zone "
            "would become another moment: pass it without one, in that zone, or have sessions in UTC with "
            "connect_args={'init_command': \"SET time_zone = '+00:00'\"} in DbConfig."
        )


def _has_zone(value: object) -> bool:
    return has_zone(value) if isinstance(value, str) else isinstance(value, datetime) and value.tzinfo is not None


def _zone_of(connection: Connection) -> str:
    """Return the session's zone, asked once per session."""
    known = connection.info.get(_ZONE)
    if known is None:
        own, servers = connection.exec_driver_sql("SELECT @@session.time_zone, @@system_time_zone").one()
        known = connection.info[_ZONE] = servers if own == "SYSTEM" else own
    return str(known)
