"""What a handler must not do with the connection it is lent: one clear error each, and the promise holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.core.errors import DbError
from tests.runtime.account import Settled
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.scenes import EFFECT, AsyncScene, Scene
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

    def run_async(self, misuse: Callable[[AsyncScene], Awaitable[object]], *, lets_out: bool = False) -> Settled:
        async def act(item: str, context: Any) -> None:
            scene = self.stage.scene(item, context)
            with noted(scene.call):
                await scene.write_async("before")
                await self.attempt_async(lambda: misuse(scene), lets_out=lets_out)

        self.stage.workload.add([self.item])
        return self.stage.workload.run([self.item], act, is_async=True)[self.item]

    def attempt(self, act: Callable[[], object], *, lets_out: bool = False) -> None:
        """Do it, and note the error of Holdfast's; any other, or none, is noted as such."""
        try:
            act()
        except BaseException as error:
            self._note(error)
            if lets_out:
                raise
        else:
            self.told.append("no error")

    async def attempt_async(self, act: Callable[[], Awaitable[object]], *, lets_out: bool = False) -> None:
        try:
            await act()
        except BaseException as error:
            self._note(error)
            if lets_out:
                raise
        else:
            self.told.append("no error")

    def _note(self, error: BaseException) -> None:
        self.told.append(str(error) if isinstance(error, DbError) else f"not an error of ours: {error!r}")

    def in_a_thread(self, act: Callable[[], object]) -> None:
        thread = threading.Thread(target=self.attempt, args=(act,))
        thread.start()
        thread.join()

    @property
    def kept(self) -> list[tuple[int, str]]:
        return self.stage.kept().get(self.item, [])


ENDING = ["close", "begin", "commit", "rollback", "detach", "invalidate"]


@pytest.mark.parametrize("what", ENDING)
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


def test_a_drivers_connection_that_is_kept_for_later_is_closed(stage: Stage) -> None:
    """It writes into nobody's transaction: not into that of whoever gets the next connection from the same pool."""
    misuse, kept = Misuse(stage, "kept-driver"), list[Any]()
    assert misuse.run(lambda scene: kept.append((scene.connection, scene.driver, scene))).is_done
    connection, driver, scene = kept[0]
    misuse.told.clear()
    misuse.attempt(lambda: connection.connection)
    assert "used after its delivery had ended" in misuse.told[0]
    later = Misuse(stage, "kept-driver-later")

    def write_through_both(own: Scene) -> None:
        values = f"'{misuse.item}', {scene.call.number}, 'late'"
        with pytest.raises(Exception, match=r"(?i)closed|\(0, ''\)"):
            driver.cursor().execute(f"INSERT INTO effects VALUES ({values})")
        own.write("after")

    assert later.run(write_through_both).is_done
    assert (misuse.kept, later.kept) == ([(1, "before")], [(1, "before"), (1, "after")])


def test_what_holdfast_says_for_a_handler_is_no_use_of_the_driver(stage: Stage) -> None:
    """Its connection goes back to the pool, and when in doubt nobody says that the handler has ended it."""
    misuse, seen = Misuse(stage, "own-statements"), list[Any]()

    def say(scene: Scene) -> None:
        app = stage.workload.app()
        app.outbox.append(scene.connection, "SomethingNew", {})
        app.job(topic="follow-up", name="follow_up")(lambda: None).enqueue_many([{}] * 3, connection=scene.connection)
        seen.append(scene.connection)

    assert misuse.run(say).is_done
    assert (misuse.told, seen[0].has_lent_driver, seen[0].has_raw_users) == (["no error"], False, False)


def test_another_thread_is_refused(stage: Stage) -> None:
    misuse = Misuse(stage, "another-thread")

    def use_elsewhere(scene: Scene) -> None:
        connection = scene.connection
        misuse.in_a_thread(lambda: connection.execute(EFFECT, {**scene.values, "step": "elsewhere"}))

    settled = misuse.run(use_elsewhere)
    assert "from another thread" in misuse.told[0]
    assert misuse.kept == ([(1, "before")] if settled.is_done else [])
    assert settled.is_done or "from another thread" in (settled.reason or "")


@pytest.mark.parametrize("what", ENDING)
def test_async_ending_the_connection_is_refused_in_the_same_words(stage: Stage, what: str) -> None:
    misuse = Misuse(stage, f"async-refused-{what}")
    settled = misuse.run_async(lambda scene: getattr(scene.transaction, what)(), lets_out=True)
    assert all(f"called {what}() on context.transaction, which is refused" in told for told in misuse.told)
    assert (settled.is_done, misuse.kept) == (False, [])
    assert "which is refused" in (settled.reason or "")


@pytest.mark.parametrize("what", ["close", "begin", "commit", "rollback"])
def test_async_a_refusal_that_is_swallowed_keeps_the_promise(stage: Stage, what: str) -> None:
    misuse = Misuse(stage, f"async-swallowed-{what}")
    settled = misuse.run_async(lambda scene: getattr(scene.transaction, what)())
    assert misuse.kept == ([(1, "before")] if settled.is_done else [])
    assert settled.is_done or "which is refused" in (settled.reason or "")


def test_async_what_is_kept_for_later_is_refused(stage: Stage) -> None:
    misuse, kept = Misuse(stage, "async-kept"), list[Any]()

    async def keep(scene: AsyncScene) -> None:
        kept.append((scene.transaction, await scene.transaction.run_sync(lambda connection: connection), scene))

    assert misuse.run_async(keep).is_done
    transaction, connection, scene = kept[0]
    late = {**scene.values, "step": "late"}
    misuse.told.clear()
    asyncio.run(misuse.attempt_async(lambda: transaction.execute(EFFECT, late)))
    misuse.attempt(lambda: connection.execute(EFFECT, late))
    assert all("used after its delivery had ended" in told for told in misuse.told), misuse.told
    assert (len(misuse.told), misuse.kept) == (2, [(1, "before")])


def test_async_another_thread_is_refused(stage: Stage) -> None:
    misuse = Misuse(stage, "async-another-thread")

    async def use_elsewhere(scene: AsyncScene) -> None:
        connection = await scene.transaction.run_sync(lambda connection: connection)
        await asyncio.to_thread(connection.execute, EFFECT, {**scene.values, "step": "elsewhere"})

    settled = misuse.run_async(use_elsewhere)
    assert "from another thread" in misuse.told[0]
    assert misuse.kept == ([(1, "before")] if settled.is_done else [])
    assert settled.is_done or "from another thread" in (settled.reason or "")
