"""The named SQL statements of the outbox."""

from __future__ import annotations

from ..database.statements import NamedSql

named = NamedSql(__package__)
