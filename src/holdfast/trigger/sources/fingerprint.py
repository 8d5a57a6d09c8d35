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

_FORM = 2
_ODBC_PASSWORD = re.compile(r"pwd=[^;]*", re.IGNORECASE)
_ODBC_DATABASE = re.compile(r"(?:^|;)\s*(?:database|initial catalog)\s*=\s*([^;]*)", re.IGNORECASE)
_SCHEMES = {"mariadb": "mysql", "postgres": "postgresql"}
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_NAMES_A_DATABASE = ("dbname", "database", "service_name", "service")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


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
    """Return ``sha256:…`` over the canonical form.

    Where the database is reached, as whom and through which driver is no part of it: a server that is moved, put behind
    a pooler or given another user is the same source. Whether it is the same database shows in its history.
    """
    url = make_url(definition.url)
    return _hashed({"form": _FORM, "database": _database(url), **_rows(definition)})


def rows_fingerprint(definition: SourceDefinition) -> str:
    """Return what stays the same when the rows move to another database: under it an operator may keep the place."""
    return _hashed({"form": _FORM, **_rows(definition)})


def former_fingerprints(definition: SourceDefinition) -> tuple[str, ...]:
    """Return what releases before hashed, with host, port and user; the first is what they would hash now."""
    return tuple(
        _hashed({"form": 1, "database": _reached_database(url), **_rows(definition)})
        for url in _same_machine(make_url(definition.url))
    )


def _rows(definition: SourceDefinition) -> dict[str, Any]:
    """Return which rows it reads and in which order."""
    return {
        "schema": definition.schema,
        "table": definition.table,
        "query": definition.query,
        "cursor": definition.cursor_column,
        "keys": list(definition.pk_columns),
        "where": definition.where,
        "parameters": {name: _stable(value) for name, value in definition.parameters.items()},
    }


def _hashed(form: dict[str, Any]) -> str:
    used = {key: value for key, value in form.items() if value not in (None, {}, [])}
    return "sha256:" + hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()


def _same_machine(url: URL) -> list[URL]:
    """Return the URL, and the same with the other names of this machine if it names that."""
    others = [name for name in _THIS_MACHINE if name != url.host] if url.host in _THIS_MACHINE else []
    return [url, *(url.set(host=name) for name in others)]


def _database(url: URL) -> dict[str, object]:
    """Return which database it is, wherever the server is."""
    named = url.database or next((url.query[key] for key in _NAMES_A_DATABASE if key in url.query), None)
    in_odbc = _ODBC_DATABASE.search(str(url.query.get("odbc_connect", "")))
    if named is None and in_odbc is not None:
        named = in_odbc[1].strip().strip("{}")
    return {"scheme": _scheme(url), "database": named}


def _scheme(url: URL) -> str:
    scheme = url.drivername.partition("+")[0]
    return _SCHEMES.get(scheme, scheme)


def _reached_database(url: URL) -> dict[str, object]:
    """Return which database it is by how it is reached, as form 1 had it."""
    scheme = _scheme(url)
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


def azure_functions_db_fingerprints(definition: SourceDefinition) -> tuple[str, ...]:
    """Return the hash that azure-functions-db 0.8.3 stores for the same definition, first as it is written here."""
    return tuple(_azure_functions_db_fingerprint(definition, url) for url in _same_machine(make_url(definition.url)))


def _azure_functions_db_fingerprint(definition: SourceDefinition, url: URL) -> str:
    form = {
        "url": str(url.set(password=None)),
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
