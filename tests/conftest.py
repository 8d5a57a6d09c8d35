"""Fixtures every test may use: real servers, started when first asked for and shared by the whole run."""

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.components import availability, workspace
from tests.components.azurite import AzuriteServer
from tests.components.cosmos import CosmosServer
from tests.components.galera import GaleraCluster, find_galera
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer, Standby, find_postgres15, find_postgres18, runnable
from tests.components.prepared import dropped_after
from tests.components.s3 import S3Server

# Parses code to underline what failed in a traceback. If a second thread parses at the same time (pytest does to show a
# failure), Python 3.11 and 3.12 may raise a SystemError in either: the whole run ends without a word about the failure.
UNDERLINING = "_extract_caret_anchors_from_line_segment"


def pytest_configure() -> None:
    setattr(traceback, UNDERLINING, lambda *_segment: None)
    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")  # a busy machine is no failure
    availability.required()  # a misspelt name must not pass for a component that ran
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(workspace.PARENT))  # where pytest puts its temporary files


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("component"):
        availability.need(marker.args[0])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if availability.skipped:
        terminalreporter.section("components that could not be had")
        for component, reason in sorted(availability.skipped.items()):
            terminalreporter.line(f"{component}: {reason}")


def _postgres(component: str, binaries: Path | None) -> Iterator[PostgresServer]:
    availability.need(component)
    assert binaries is not None
    with PostgresServer(runnable(binaries)) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL 18."""
    yield from _postgres("postgres18", find_postgres18())


@pytest.fixture(scope="session")
def standby(postgres_server: PostgresServer) -> Iterator[Standby]:
    """A hot standby of PostgreSQL 18."""
    with Standby(postgres_server) as server:
        yield server


@pytest.fixture(scope="session")
def postgres15_server() -> Iterator[PostgresServer]:
    yield from _postgres("postgres15", find_postgres15())


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    availability.need("mariadb")
    with MariadbServer() as server:
        yield server


@pytest.fixture(scope="session")
def galera() -> Iterator[GaleraCluster]:
    """Two nodes of MariaDB that are one cluster."""
    availability.need("galera")
    library = find_galera()
    assert library is not None
    with GaleraCluster(library) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def azurite() -> Iterator[AzuriteServer]:
    availability.need("azurite")
    with AzuriteServer() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    availability.need("s3")
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def cosmos_server() -> Iterator[CosmosServer]:
    availability.need("cosmos")
    with CosmosServer() as server:
        yield server


def _fresh_database(server: PostgresServer | MariadbServer) -> Iterator[str]:
    server.start()  # a test before this one may have left it stopped
    yield from dropped_after(server, server.create_database())


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """URL of an empty database of its own on PostgreSQL 18."""
    yield from _fresh_database(postgres_server)


@pytest.fixture
def postgres15_url(postgres15_server: PostgresServer) -> Iterator[str]:
    """URL of an empty database of its own on PostgreSQL 15."""
    yield from _fresh_database(postgres15_server)


@pytest.fixture
def empty_mariadb_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """URL of an empty database of its own on MariaDB."""
    yield from _fresh_database(mariadb_server)


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """URL of a database file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """The same; suites that need Holdfast's tables in each test take the one of `tests.components.prepared`."""
    return empty_postgres_url


@pytest.fixture
def mariadb_url(empty_mariadb_url: str) -> str:
    return empty_mariadb_url


@pytest.fixture
def sqlite_url(empty_sqlite_url: str) -> str:
    return empty_sqlite_url


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> str:
    """Name of an empty bucket."""
    return s3_server.create_bucket()


@pytest.fixture
def azurite_container(azurite: AzuriteServer) -> str:
    """Name of an empty blob container."""
    return azurite.create_container()


@pytest.fixture
def azurite_table(azurite: AzuriteServer) -> str:
    """Name of an empty table."""
    return azurite.create_table()


@pytest.fixture
def cosmos_container(cosmos_server: CosmosServer) -> tuple[str, str]:
    """Names of a database and of the empty container in it, partitioned by `/id`."""
    return cosmos_server.create_container()
