"""Named SQL statements, read once from ``sql/<dialect>/*.sql`` and ``sql/any/*.sql`` beside the package that uses them.

A file has one theme and several sections. ``-- name: claim`` begins a statement, or a script of several, each but the
last ended by a semicolon at the end of a line. ``-- part: is_ours`` begins what statements share: ``{{is_ours}}`` is
put in its place. What is the same for every dialect is in ``any``.

A parameter is ``:name``, the time is ``:now`` (the database's own, plus ``:ahead_seconds``, which is zero except in
tests that step it), a later time is ``:now + column seconds`` (where the dialect has no short word for it), and
``{{key_collation}}`` stands for the collation of our keys (``key_collation.py``).

``python -m holdfast.database.statements jobs postgresql claim`` prints a statement whole, as it is sent: for EXPLAIN.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from importlib import resources

from .key_collation import KEY_COLLATION

_PART = re.compile(r"\{\{([a-z_]+)\}\}")
_SECTION = re.compile(r"^-- (name|part): ([a-z_]+)$", re.MULTILINE)
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
        self._sections = functools.cache(self._read)

    def names(self, dialect: str) -> list[str]:
        """Return the names of all statements of a dialect; parts are none."""
        return [name for name, (kind, _) in self._sections(dialect).items() if kind == "name"]

    def schema(self, dialect: str, name: str = "schema") -> tuple[str, ...]:
        """Return the statements that make or change the tables, one by one, as they are written."""
        return _split(self._text(dialect, name))

    def whole(self, dialect: str, name: str) -> str:
        """Return a section as one statement without parameters, such as one that creates a function."""
        return self._text(dialect, name)

    def _statement(self, dialect: str, name: str) -> str:
        """Return a statement in the parameter style of the dialect's driver."""
        [only] = self._script(dialect, name)
        return only

    def _script(self, dialect: str, name: str) -> tuple[str, ...]:
        """Return the statements of a change, in order, in the parameter style of the dialect's driver."""
        return tuple(_for_driver(dialect, sql) for sql in _split(self._text(dialect, name)))

    def _text(self, dialect: str, name: str) -> str:
        _, written = self._sections(dialect)[name]
        text = written.replace("{{key_collation}}", KEY_COLLATION)
        return _PART.sub(lambda found: self._text(dialect, found[1]), text)

    def _read(self, dialect: str) -> dict[str, tuple[str, str]]:
        """Return the kind and the text of each section that a dialect has, by its name."""
        sections: dict[str, tuple[str, str]] = {}
        for kind, name, text in self._written(("any", dialect)):
            if name in sections:
                raise ValueError(f"{self._package} has two sections '{name}' for {dialect}. Give one another name.")
            sections[name] = kind, text
        return sections

    def _written(self, folders: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        for folder in folders:
            place = resources.files(self._package).joinpath("sql", folder)
            for file in sorted(place.iterdir(), key=lambda file: file.name) if place.is_dir() else ():
                _, *found = _SECTION.split(file.read_text("utf-8"))
                for kind, name, text in zip(found[::3], found[1::3], found[2::3], strict=True):
                    yield kind, name, _COMMENT.sub("", text).strip()


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


def _print(package: str, dialect: str, name: str) -> None:
    for sql in NamedSql(f"holdfast.{package}").script(dialect, name):
        print(sql, end=";\n")  # noqa: T201 - this is what the command is for


if __name__ == "__main__":
    _print(*sys.argv[1:])
