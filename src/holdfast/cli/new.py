"""``holdfast new``: a starter that works, written into a directory without touching what is there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from .._version import __version__
from ..core.private_files import private
from .exits import EXIT_CODES_HELP, CommandError, ExitCode, described
from .options import argument, group
from .output import print_line

new_app = group("Write a starter to build on.")


class Database(StrEnum):
    """The databases a starter can be written for."""

    POSTGRES = "postgres"
    MYSQL = "mysql"
    MSSQL = "mssql"
    SQLITE = "sqlite"


@dataclass(frozen=True, slots=True)
class _Words:
    """What differs between the starters for two databases."""

    database: str
    url: str
    create_tables: str
    safety: str
    grant: str


_STRICT = 'horizon="auto",  # refuses a cursor that could lose a row which commits late'
_WORDS = {
    Database.POSTGRES: _Words(
        "PostgreSQL",
        "postgresql://postgres:postgres@localhost:5432/shop",
        "psql postgresql://postgres:postgres@localhost:5432/shop -f schema.sql",
        _STRICT,
        "The database role needs `GRANT pg_read_all_stats TO <role>`, to see how old open transactions are.",
    ),
    Database.MYSQL: _Words(
        "MariaDB or MySQL",
        "mysql://root:root@localhost:3306/shop",
        "mysql --host=localhost --user=root --password shop < schema.sql",
        _STRICT,
        "The database user needs `GRANT PROCESS ON *.* TO <user>`, to see how old open transactions are.",
    ),
    Database.MSSQL: _Words(
        "SQL Server and its ODBC driver 18",
        "mssql+pyodbc://sa:Your_password1@localhost:1433/shop?driver=ODBC+Driver+18+for+SQL+Server&TrustServerCertificate=yes",
        "sqlcmd -S localhost -U sa -d shop -i schema.sql",
        "lookback=60,  # re-reads the last minute, so that a row which commits late is not lost\n"
        '    updates="trusted",  # the trigger in schema.sql sets updated_at on every change',
        "A transaction must not stay open longer than the `lookback` of 60 seconds: what it wrote could be missed.\n"
        "- What Holdfast sends to SQL Server (its upsert is a `MERGE`) is compiled and unit-tested only: try it first.",
    ),
    Database.SQLITE: _Words(
        "SQLite, for trying things out on one machine",
        "sqlite:///shop.db",
        "sqlite3 shop.db < schema.sql",
        _STRICT,
        "SQLite is one file on one machine: choose another database before this goes to Azure.",
    ),
}
_TEMPLATES = {
    "function_app.py": "function_app.py.txt",
    "host.json": "host.json",
    "local.settings.sample.json": "local.settings.sample.json",
    "requirements.txt": "requirements.txt",
    "schema.sql": "schema.{database}.sql",
    ".funcignore": "funcignore.txt",
    "README.md": "README.md",
}
_PRIVATE = ("local.settings.sample.json",)  # its copy gets its mode and holds passwords; the rest is source code
_LITERAL = ("schema.sql", "host.json", ".funcignore")


def _directory(given: str | Path) -> Path:
    """Return the directory. An empty text, as an unset variable of a script leaves it, would mean the present one."""
    if not str(given).strip():
        raise typer.BadParameter("it is empty. Name a directory, or write . for the present one.")
    return Path(given)


@new_app.command("function-app", epilog=EXIT_CODES_HELP)
def function_app(
    directory: Annotated[
        Path, argument(metavar="DIRECTORY", help="Where to write it; made when missing.", parser=_directory)
    ],
    database: Annotated[Database, typer.Option("--database", help="The database it will use.")] = Database.POSTGRES,
) -> None:
    """Write an Azure Functions app: a timer that follows a table, and an HTTP function. Overwrites nothing."""
    contents = {name: _filled(name, template, database) for name, template in _TEMPLATES.items()}
    _refuse_existing(directory, contents)
    _write(directory, contents)
    for name in contents:
        print_line(f"wrote {directory / name}")
    print_line(f"Next: read {directory / 'README.md'}, create the tables of schema.sql, and run: func start")


def _write(directory: Path, contents: dict[str, str]) -> None:
    """Write all files or none.

    Raises:
        CommandError: the directory cannot be written to.
    """
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            opener = private if name in _PRIVATE else None
            with open(directory / name, "x", encoding="utf-8", newline="\n", opener=opener) as file:
                written.append(directory / name)
                file.write(content)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise CommandError(
            f"'{directory}' could not be written ({described(error)}). Choose a directory you may write to.",
            ExitCode.FAILED,
        ) from error


def _filled(name: str, template: str, database: Database) -> str:
    text = (files(__package__) / "starters" / "function_app" / template.format(database=database)).read_text("utf-8")
    if name in _LITERAL:
        return text
    words = _WORDS[database]
    extras = "azure" if database is Database.SQLITE else f"azure,{database}"
    return Template(text).substitute(
        database=words.database,
        db_url=words.url,
        create_tables=words.create_tables,
        safety=words.safety,
        grant=words.grant,
        extras=extras,
        version=__version__,
    )


def _refuse_existing(directory: Path, names: dict[str, str]) -> None:
    if directory.exists() and not directory.is_dir():
        raise CommandError(
            f"'{directory}' is a file; nothing was written. Name a directory, or one that does not exist yet.",
            ExitCode.REFUSED,
        )
    existing = [name for name in names if (directory / name).exists()]
    if existing:
        raise CommandError(
            f"'{directory}' has {', '.join(existing)} already; nothing was written. Choose another directory, or move "
            "them away.",
            ExitCode.REFUSED,
        )
