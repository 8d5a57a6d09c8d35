"""One database for each workload and database server, in which all cells are run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.runtime.ways import MARIADB, POSTGRES, SQLITE

SERVERS = {POSTGRES: "postgres_server", MARIADB: "mariadb_server"}
COMPONENTS = {POSTGRES: [pytest.mark.component("postgres18")], MARIADB: [pytest.mark.component("mariadb")], SQLITE: []}
_PLAIN = {MARIADB: "?ssl_disabled=true"}  # pymysql reads all certificates for each connection otherwise
NewDatabase = Callable[[str], AbstractContextManager[str]]


@pytest.fixture(scope="session")
def new_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewDatabase:
    """Return what makes an empty database and drops it again."""

    @contextmanager
    def make(database: str) -> Iterator[str]:
        if database == SQLITE:
            yield _sqlite_url(tmp_path_factory.mktemp("runtime"))
            return
        server: PostgresServer | MariadbServer = request.getfixturevalue(SERVERS[database])
        server.start()
        name = server.create_database()
        yield server.url(name) + _PLAIN.get(database, "")
        server.terminate_sessions(name)
        server.drop_database(name)

    return make


def _sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'runtime.db'}"
