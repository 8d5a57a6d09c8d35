"""What a handler must not do with the connection it is lent: one clear error each, and the promise holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.core.errors import DbError
from tests.runtime.account import Settled
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.scenes import EFFECT, Scene
from tests.runtime.stage import Stage, noted, open_stage
from tests.runtime.ways import EVERYWHERE
from tests.runtime.workloads import WORKLOADS

PLACES = [
    pytest.param((workload, database), id=f"{workload}-{database}", marks=COMPONENTS[database])
    for workload in WORKLOADS
    for database in EVERYWHERE
]
pytestmark = pytest.mark.parametrize("stage", PLACES, indirect=True)


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[Stage]:
    workload, database = request.param
    with new_database(database) as url, open_stage(workload, url) as opened:
        yield opened


@dataclass
class Misuse:
    """Runs one item whose handler does something wrong after its first effect, and notes what it was told."""

    stage: Stage
    item: str
    told: list[str] = field(default_factory=list)

    def run(self, misuse: Callable[[Scene], object], *, lets_out: bool = False) -> Settled:
        def act(item: str, context: Any) -> None:
            scene = self.stage.scene(item, context)
            with noted(scene.call):
                scene.write("before")
                self.attempt(lambda: misuse(scene), lets_out=lets_out)

        self.stage.workload.add([self.item])
        return self.stage.workload.run([self.item], act)[self.item]

    def attempt(self, act: Callable[[], object], *, lets_out: bool = False) -> None:
        """Do it, and note the error of Holdfast's; any other, or none, is noted as such."""
        try:
            act()
        except DbError as error:
            self.told.append(str(error))
            if lets_out:
                raise
        except BaseException as error:
            self.told.append(f"not an error of ours: {error!r}")
        else:
            self.told.append("no error")

    def in_a_thread(self, act: Callable[[], object]) -> None:
        thread = threading.Thread(target=self.attempt, args=(act,))
        thread.start()
        thread.join()

    @property
    def kept(self) -> list[tuple[int, str]]:
        return self.stage.kept().get(self.item, [])


@pytest.mark.parametrize("what", ["close", "begin", "commit", "rollback", "detach", "invalidate"])
def test_ending_the_connection_is_refused_in_the_same_words(stage: Stage, what: str) -> None:
    misuse = Misuse(stage, f"refused-{what}")
    settled = misuse.run(lambda scene: getattr(scene.connection, what)(), lets_out=True)
    assert all(f"called {what}() on context.transaction, which is refused" in told for told in misuse.told)
    assert not settled.is_done
    assert "which is refused" in (settled.reason or "")
    assert misuse.kept == []


@pytest.mark.parametrize("what", ["close", "begin", "commit", "rollback"])
def test_a_refusal_that_is_swallowed_keeps_the_promise(stage: Stage, what: str) -> None:
    misuse = Misuse(stage, f"swallowed-{what}")
    settled = misuse.run(lambda scene: getattr(scene.connection, what)())
    assert misuse.kept == ([(1, "before")] if settled.is_done else [])
    assert settled.is_done or "which is refused" in (settled.reason or "")


def test_a_connection_that_is_kept_for_later_is_refused(stage: Stage) -> None:
    misuse, kept = Misuse(stage, "kept"), list[Any]()

    def keep(scene: Scene) -> None:
        kept.append((scene.connection, scene))

    assert misuse.run(keep).is_done
    connection, scene = kept[0]
    misuse.told.clear()
    misuse.attempt(lambda: connection.execute(EFFECT, {**scene.values, "step": "late"}))
    misuse.attempt(lambda: scene.write("late"))
    misuse.in_a_thread(lambda: connection.execute(EFFECT, {**scene.values, "step": "late"}))
    assert all("used after its delivery had ended" in told for told in misuse.told), misuse.told
    assert misuse.kept == [(1, "before")]


def test_another_thread_is_refused(stage: Stage) -> None:
    misuse = Misuse(stage, "another-thread")

    def use_elsewhere(scene: Scene) -> None:
        connection = scene.connection
        misuse.in_a_thread(lambda: connection.execute(EFFECT, {**scene.values, "step": "elsewhere"}))

    settled = misuse.run(use_elsewhere)
    assert "from another thread" in misuse.told[0]
    assert misuse.kept == ([(1, "before")] if settled.is_done else [])
    assert settled.is_done or "from another thread" in (settled.reason or "")
