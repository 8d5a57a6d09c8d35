"""An application for the directed crash tests, on every database that has a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components.processes import PythonWorker, wait_until
from tests.outbox.faults.account import Books, Ends
from tests.outbox.faults.instances import instance, prepared, undelivered
from tests.outbox.shops import Shop

NOBODY = Ends(frozenset(), frozenset(), frozenset())


@dataclass
class Scene:
    """One database, what was appended to it, and the instances that deliver it."""

    shop: Shop
    stage: Path
    ends: Ends = NOBODY

    def instance(self, processors: Sequence[str], *, staged_at: str = "", planted_bug: str = "") -> PythonWorker:
        """Start an instance; ``staged_at`` is where it says so and waits until ``go_on``."""
        environment = {"STAGE": str(self.stage), "STAGED_AT": staged_at, "PLANTED_BUG": planted_bug}
        return instance(self.shop.url, processors, environment)

    def go_on(self) -> None:
        """Let whoever waits on the stage go on."""
        self.stage.touch()

    def append(self, *names: str) -> None:
        """Append messages with these ids, in one transaction, with the data that belongs to them."""
        for name in names:
            self.shop.execute("INSERT INTO orders (message_id) VALUES (:name)", name=name)
        with self.shop.app.database.begin() as connection:
            for name in names:
                self.shop.app.outbox.append(connection, "Placed", {"name": name}, message_id=name)
        self.ends = Ends(self.ends.committed.union(names), frozenset(), frozenset())

    def wait_for_delivery(self, *processors: str, within_seconds: float = 30.0) -> None:
        """Wait until processors have an effect of every message."""

        def is_done() -> bool:
            return not any(undelivered(self.shop, name) for name in processors)

        wait_until(is_done, f"delivery to {processors} within {within_seconds:g} s", within_seconds)

    @property
    def books(self) -> Books:
        return Books(self.shop.app.database, self.ends)


DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
]


@pytest.fixture(params=DATABASES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """PostgreSQL and MariaDB."""
    yield from _scene(request.getfixturevalue(request.param), tmp_path)


@pytest.fixture
def postgres_scene(postgres_url: str, tmp_path: Path) -> Iterator[Scene]:
    yield from _scene(postgres_url, tmp_path)


@pytest.fixture
def mariadb_scene(mariadb_url: str, tmp_path: Path) -> Iterator[Scene]:
    yield from _scene(mariadb_url, tmp_path)


def _scene(url: str, folder: Path) -> Iterator[Scene]:
    shop = prepared(url)
    yield Scene(shop, folder / "go-on")
    shop.provider.dispose_all()
