"""One database for each workload and database server, in which all cells are run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.components.prepared import copy_prepared, create_prepared, dropped_after
from tests.runtime.ways import MARIADB, POSTGRES, SQLITE
from tests.runtime.workloads import WORKLOADS

SERVERS = {POSTGRES: "postgres_server", MARIADB: "mariadb_server"}
COMPONENTS = {POSTGRES: [pytest.mark.component("postgres18")], MARIADB: [pytest.mark.component("mariadb")], SQLITE: []}
ON_SERVERS = [
    pytest.param(workload, database, marks=COMPONENTS[database])
    for workload in WORKLOADS
    for database in (POSTGRES, MARIADB)
]
NewDatabase = Callable[[str], AbstractContextManager[str]]


@pytest.fixture(scope="session")
def new_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewDatabase:
    """Return what makes a database with Holdfast's tables and drops it again."""

    @contextmanager
    def make(database: str) -> Iterator[str]:
        if database == SQLITE:
            yield copy_prepared(tmp_path_factory.mktemp("runtime") / "runtime.db", tmp_path_factory)
            return
        server: PostgresServer | MariadbServer = request.getfixturevalue(SERVERS[database])
        yield from dropped_after(server, create_prepared(server))

    return make
