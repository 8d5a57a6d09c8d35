"""Named SQL statements, read once from ``sql/<dialect>/<name>.sql`` beside the package that uses them.

In the files a parameter is ``:name``, the time is ``:now`` (the database's own, plus ``:ahead_seconds``, which is zero
except in tests that step it), a later time is ``:now + column seconds`` (where the dialect has no short word for it),
and ``{{file.sql}}`` stands for the text of another file. A script is several statements, each but the last ended by a
semicolon at the end of a line.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

_INCLUDE = re.compile(r"\{\{([a-z_]+\.sql)\}\}")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_LATER = re.compile(r":now \+ ([a-z_.]+) seconds")
_NOW = {
    "postgresql": "(clock_timestamp() + :ahead_seconds * interval '1 second')",
    "mysql": "(UTC_TIMESTAMP(6) + INTERVAL :ahead_seconds SECOND)",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%.3f seconds', :ahead_seconds))",
}
_LATER_BY = {
    "mysql": r"(UTC_TIMESTAMP(6) + INTERVAL (:ahead_seconds + \1) SECOND)",
    "sqlite": r"strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%.3f seconds', :ahead_seconds + \1))",
}


class NamedSql:
    """The statements of one package."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.statement = functools.cache(self._statement)
        self.script = functools.cache(self._script)

    def schema(self, dialect: str, name: str = "schema") -> tuple[str, ...]:
        """Return the statements that make or change the tables, one by one, as they stand in the file."""
        return _split(self._text(dialect, f"{name}.sql"))

    def whole(self, dialect: str, name: str) -> str:
        """Return a file as one statement without parameters, such as one that creates a function."""
        return self._text(dialect, f"{name}.sql")

    def _statement(self, dialect: str, name: str) -> str:
        """Return a statement in the parameter style of the dialect's driver."""
        [only] = self._script(dialect, name)
        return only

    def _script(self, dialect: str, name: str) -> tuple[str, ...]:
        """Return the statements of a change, in order, in the parameter style of the dialect's driver."""
        return tuple(_for_driver(dialect, sql) for sql in _split(self._text(dialect, f"{name}.sql")))

    def _text(self, dialect: str, file_name: str) -> str:
        text = resources.files(self._package).joinpath("sql", dialect, file_name).read_text("utf-8")
        text = _COMMENT.sub("", text).strip()
        return _INCLUDE.sub(lambda found: self._text(dialect, found[1]), text)


def family(dialect: str) -> str:
    """Return the name of the folder with a dialect's statements: MariaDB and MySQL share one."""
    return "mysql" if dialect == "mariadb" else dialect


def _for_driver(dialect: str, sql: str) -> str:
    if dialect in _LATER_BY:
        sql = _LATER.sub(_LATER_BY[dialect], sql)
    sql = _PARAMETER.sub(lambda found: _NOW[dialect] if found[1] == "now" else found[0], sql)
    if dialect == "sqlite":
        return sql
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in f"{text}\n".split(";\n") if part.strip())
