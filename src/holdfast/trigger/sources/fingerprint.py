"""The identity of a source definition, so that a checkpoint is never used for other rows than it was made for.

The canonical form is versioned and leaves out what is not set: a new option that nobody uses changes no stored
fingerprint. The form azure-functions-db 0.8.3 hashed is worked out too, so that its state can be recognised.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import URL, make_url

_FORM = 1
_ODBC_PASSWORD = re.compile(r"pwd=[^;]*", re.IGNORECASE)
_SCHEMES = {"mariadb": "mysql", "postgres": "postgresql"}
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """Everything that decides which rows a source reads and in which order."""

    url: str
    schema: str | None
    table: str | None
    query: str | None
    cursor_column: str
    pk_columns: Sequence[str]
    where: str | None
    parameters: Mapping[str, object]
    strategy: str
    operation_mode: str
    cursor_type_names: Sequence[str]


def fingerprint(definition: SourceDefinition) -> str:
    """Return ``sha256:…`` over the canonical form. The password is no part of it, nor is the driver."""
    form: dict[str, Any] = {
        "form": _FORM,
        "database": _database(make_url(definition.url)),
        "schema": definition.schema,
        "table": definition.table,
        "query": definition.query,
        "cursor": definition.cursor_column,
        "keys": list(definition.pk_columns),
        "where": definition.where,
        "parameters": {name: _stable(value) for name, value in definition.parameters.items()},
    }
    used = {key: value for key, value in form.items() if value not in (None, {}, [])}
    return "sha256:" + hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()


def _database(url: URL) -> dict[str, object]:
    """Return which database it is. Drivers may also be told in the query part, which counts only where it is used."""
    scheme = url.drivername.partition("+")[0]
    scheme = _SCHEMES.get(scheme, scheme)
    named: dict[str, object] = {
        "scheme": scheme,
        "user": url.username,
        "host": (url.host or "").lower(),
        "port": url.port or _PORTS.get(scheme),
        "database": url.database,
    }
    elsewhere = {key: url.query[key] for key in ("host", "port", "service", "unix_socket") if key in url.query}
    if "odbc_connect" in url.query:
        elsewhere["odbc_connect"] = _ODBC_PASSWORD.sub("", str(url.query["odbc_connect"]))
    return named | ({"query": elsewhere} if elsewhere else {})


def _stable(value: object) -> str:
    """Return a text that is the same in every process: a set has no order of its own."""
    return repr(sorted(value, key=repr)) if isinstance(value, (set, frozenset)) else repr(value)


def azure_functions_db_fingerprint(definition: SourceDefinition) -> str:
    """Return the hash that azure-functions-db 0.8.3 stores for the same definition."""
    form = {
        "url": str(make_url(definition.url).set(password=None)),
        "schema": definition.schema,
        "table": definition.table,
        "query": definition.query,
        "cursor_column": definition.cursor_column,
        "pk_columns": list(definition.pk_columns),
        "where": definition.where,
        "parameters": dict(definition.parameters),
        "strategy": definition.strategy,
        "operation_mode": definition.operation_mode,
        "cursor_types": list(definition.cursor_type_names),
    }
    return hashlib.sha256(json.dumps(form, sort_keys=True, default=str).encode()).hexdigest()
