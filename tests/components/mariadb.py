"""MariaDB as Debian packages it, with a private data directory and row-based binary log."""

import contextlib
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pymysql

from tests.components.ports import HOST
from tests.components.server import Server, unprivileged_user

SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
SETTINGS = (
    f"--bind-address={HOST}",
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--gtid-strict-mode=1",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=64M",
    "--max-connections=200",
    "--character-set-server=utf8mb4",
)
# Neither changes what survives the death of the server process; only the death of the machine would.
UNSYNCED = ("--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0")
SYNCED = ("--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")


class MariadbServer(Server):
    """One MariaDB server; `root` needs no password."""

    name: ClassVar[str] = "mariadb"

    def __init__(self, *, fsync: bool = False) -> None:
        super().__init__()
        self.user = unprivileged_user("mysql", "nobody")
        self.data = self.directory / "data"
        self.settings = (*SETTINGS, *(SYNCED if fsync else UNSYNCED))

    def url(self, database: str = "mysql") -> str:
        """Return the SQLAlchemy URL of `database`, without TLS: pymysql reads all certificates for each connection."""
        return f"mysql+pymysql://root@{HOST}:{self.port}/{database}?ssl_disabled=true"

    def create_database(self, template: str | None = None) -> str:
        """Create an empty database, or one with the tables and rows of another, and return its name."""
        name = f"t_{uuid.uuid4().hex[:16]}"
        self._execute(f"CREATE DATABASE `{name}`")
        for table in self._tables(template) if template else ():
            self._execute(f"CREATE TABLE `{name}`.`{table}` LIKE `{template}`.`{table}`")
            self._execute(f"INSERT INTO `{name}`.`{table}` SELECT * FROM `{template}`.`{table}`")
        return name

    def _tables(self, database: str) -> list[str]:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", [database])
            return [row[0] for row in cursor.fetchall()]

    def drop_database(self, name: str) -> None:
        """Drop a database. Fails after ten seconds when a session still holds locks on its tables."""
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def terminate_sessions(self, database: str) -> int:
        """End every session of `database` from the server's side and return how many there were."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [database])
            sessions = [row[0] for row in cursor.fetchall()]
            for session in sessions:
                with contextlib.suppress(pymysql.err.OperationalError):  # it ended by itself
                    cursor.execute("KILL %s", [session])
        return len(sessions)

    def _prepare(self) -> None:
        self._data_directory()
        self._run(
            [
                *(_program("mariadb-install-db"), "--no-defaults", f"--datadir={self.data}"),
                *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
            ]
        )

    def _command(self) -> Sequence[str]:
        return [
            *(_program("mariadbd"), "--no-defaults", f"--datadir={self.data}", f"--port={self.port}"),
            *(f"--socket={self.data}/my.sock", f"--pid-file={self.data}/my.pid", f"--tmpdir={self.data}"),
            *self.settings,
        ]

    def _answers(self) -> bool:
        with contextlib.suppress(pymysql.err.OperationalError):
            self._execute("SELECT 1")
            return True
        return False

    def _connect(self) -> "pymysql.connections.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            host=HOST, port=self.port, user="root", autocommit=True, connect_timeout=10, ssl_disabled=True
        )

    def _execute(self, statement: str) -> None:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 10")
            cursor.execute(statement)


def find_mariadb() -> Path | None:
    """Return the path of mariadbd when it and its installer are here, else None."""
    if shutil.which("mariadb-install-db", path=SYSTEM_FOLDERS) is None:
        return None
    daemon = shutil.which("mariadbd", path=SYSTEM_FOLDERS)
    return None if daemon is None else Path(daemon)


def _program(name: str) -> str:
    return shutil.which(name, path=SYSTEM_FOLDERS) or name
