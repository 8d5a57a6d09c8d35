"""The named SQL statements of the queue."""

from __future__ import annotations

from ..database.statements import NamedSql

_named = NamedSql(__package__)
statement = _named.statement
script = _named.script
schema_statements = _named.schema
