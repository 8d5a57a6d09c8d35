"""A database for the directed crash tests, with its server where it has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.model import JobId, JobView
from holdfast.jobs.store import job_store
from holdfast.jobs.stores.base import SqlJobStore
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.components.processes import PythonWorker
from tests.jobs.faults.app import EFFECTS_TABLE, HELD_SECONDS, declare


@dataclass
class Scene:
    """One database, its jobs, and the processes that work on them."""

    url: str
    server: PostgresServer | MariadbServer | None
    hf: Holdfast
    jobs: dict[str, JobDefinition]

    @property
    def later(self) -> SqlJobStore:
        """Return the queue as it is seen once every lease given so far has passed."""
        return job_store(self.hf.jobs.store.engine, ahead_seconds=lambda: 2 * HELD_SECONDS)

    @property
    def much_later(self) -> SqlJobStore:
        """Return the queue as it is seen once every retry is due."""
        return job_store(self.hf.jobs.store.engine, ahead_seconds=lambda: 10 * HELD_SECONDS)

    def let_suspects_wait_no_longer(self) -> None:
        """Let suspects be tested now, although the queue was reaped by a later clock."""
        with self.hf.database.begin() as connection:
            connection.execute(text("UPDATE holdfast_jobs SET run_at = created_at WHERE status = 'suspect'"))

    def worker(self, **environment: str) -> PythonWorker:
        return PythonWorker("-m", "tests.jobs.faults.app", environment={"WORKER_URL": self.url, **environment})

    def stage(self, folder: Path, n: int, kind: str = "staged") -> JobId:
        """Enqueue a job that goes on when files appear in ``folder``; of the kind ``held`` its lease is long."""
        folder.mkdir()
        return self.jobs[kind].enqueue(n=n, note=str(folder)).id

    def view(self, job_id: JobId) -> JobView | None:
        return self.hf.jobs.get(job_id)

    def rows(self, sql: str, **values: object) -> list[dict[str, Any]]:
        with self.hf.database.connect() as connection:
            return [dict(row) for row in connection.execute(text(sql), values).mappings()]

    def effects(self, n: int) -> list[int]:
        """Return the attempts that have written."""
        return [row["attempt"] for row in self.rows("SELECT attempt FROM effects WHERE n = :n", n=n)]

    def history(self, job_id: JobId) -> list[tuple[int, str]]:
        """Return what the history tells of a job's attempts."""
        found = self.rows(
            "SELECT attempt, status FROM holdfast_history WHERE item_id = :item ORDER BY id", item=f"job-{job_id}"
        )
        return [(row["attempt"], row["status"]) for row in found]


SERVERS = {"postgres_url": "postgres_server", "mariadb_url": "mariadb_server"}


@pytest.fixture(params=["postgres_url", "mariadb_url", "sqlite_url"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Every database."""
    yield from _scene(request)


@pytest.fixture(params=list(SERVERS))
def server_scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Every database that has a server."""
    yield from _scene(request)


@pytest.fixture(params=["mariadb_url"])
def mariadb_scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """MariaDB."""
    yield from _scene(request)


@pytest.fixture(params=["sqlite_url"])
def file_scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A database that is a file."""
    yield from _scene(request)


def _scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    url = request.getfixturevalue(request.param)
    name = SERVERS.get(request.param)
    hf = Holdfast(url, app_name="faults")
    hf.migrate()
    with hf.database.begin() as connection:
        connection.execute(text(EFFECTS_TABLE))
    yield Scene(url, None if name is None else request.getfixturevalue(name), hf, declare(hf))
    hf._provider.dispose_all()
