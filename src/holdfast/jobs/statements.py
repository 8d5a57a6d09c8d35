"""The named SQL statements of a dialect, read from ``sql/<dialect>/*.sql`` once.

In the files a parameter is ``:name``, the time is ``:now`` (the database's own, plus ``:ahead_seconds``, which is zero
except in tests that step it), and ``{{file.sql}}`` stands for the text of another file.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

_INCLUDE = re.compile(r"\{\{([a-z_]+\.sql)\}\}")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_NOW = {
    "postgresql": "(clock_timestamp() + :ahead_seconds * interval '1 second')",
    "mysql": "(UTC_TIMESTAMP(6) + INTERVAL :ahead_seconds SECOND)",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', :ahead_seconds || ' seconds')",
}


@functools.cache
def statement(dialect: str, name: str) -> str:
    """Return a statement in the parameter style of the dialect's driver."""
    sql = _PARAMETER.sub(lambda found: _NOW[dialect] if found[1] == "now" else found[0], _text(dialect, f"{name}.sql"))
    if dialect == "sqlite":
        return sql
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


@functools.cache
def schema_statements(dialect: str) -> tuple[str, ...]:
    """Return the statements that make the tables, one by one."""
    return tuple(part.strip() for part in _text(dialect, "schema.sql").split(";\n") if part.strip())


def _text(dialect: str, file_name: str) -> str:
    text = resources.files(__package__).joinpath("sql", dialect, file_name).read_text("utf-8")
    text = _COMMENT.sub("", text).strip()
    return _INCLUDE.sub(lambda found: _text(dialect, found[1]), text)
