"""The named SQL statements of the outbox."""

from __future__ import annotations

from ..core.named_sql import NamedSql

named = NamedSql(__package__)
