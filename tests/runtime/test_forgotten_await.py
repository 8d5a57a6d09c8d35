"""What an ``async def`` handler forgot to await on its transaction was never done, so its work is not done either."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.scenes import EFFECT, AsyncScene
from tests.runtime.stage import Stage, noted, open_stage
from tests.runtime.ways import EVERYWHERE
from tests.runtime.workloads import WORKLOADS

PLACES = [
    pytest.param(workload, database, marks=COMPONENTS[database]) for workload in WORKLOADS for database in EVERYWHERE
]
Act = Callable[[AsyncScene], Awaitable[None]]


def call(scene: AsyncScene) -> Any:
    """Return an effect that is written once it is awaited."""
    return scene.transaction.execute(EFFECT, {**scene.values, "step": "forgotten"})


async def forget_the_only_one(scene: AsyncScene) -> None:
    call(scene)


async def forget_one_of_two(scene: AsyncScene) -> None:
    await scene.write_async("before")
    call(scene)


async def forget_a_function(scene: AsyncScene) -> None:
    scene.transaction.run_sync(lambda connection: None)


async def forget_a_savepoint(scene: AsyncScene) -> None:
    scene.transaction.begin_nested()
    await scene.write_async("before")


async def forget_to_undo(scene: AsyncScene) -> None:
    nested = await scene.transaction.begin_nested()
    await scene.write_async("before")
    nested.rollback()


FORGETFUL: dict[str, tuple[Act, str]] = {
    "only": (forget_the_only_one, "execute"),
    "second": (forget_one_of_two, "execute"),
    "function": (forget_a_function, "run_sync"),
    "savepoint": (forget_a_savepoint, "begin_nested"),
    "undoing": (forget_to_undo, "begin_nested().rollback"),
}


async def await_all_at_once(scene: AsyncScene) -> None:
    await asyncio.gather(asyncio.create_task(call(scene)), call(scene))


async def take_one_back(scene: AsyncScene) -> None:
    call(scene).close()
    await asyncio.wait_for(call(scene), 30)


CAREFUL: dict[str, tuple[Act, int]] = {"at_once": (await_all_at_once, 2), "taken_back": (take_one_back, 1)}


def play(stage: Stage, acts: dict[str, Act]) -> dict[str, Any]:
    async def act(item: str, context: Any) -> None:
        scene = stage.scene(item, context)
        with noted(scene.call):
            await acts[item](scene)

    stage.workload.add([*acts])
    return stage.workload.run([*acts], act, is_async=True)


@pytest.mark.parametrize(("workload", "database"), PLACES)
def test_a_handler_that_forgets_an_await_has_failed_and_is_told_which(
    workload: str, database: str, new_database: NewDatabase
) -> None:
    with new_database(database) as url, open_stage(workload, url) as stage:
        settled = play(stage, {item: act for item, (act, _) in FORGETFUL.items()})
        for item, (_, name) in FORGETFUL.items():
            assert not settled[item].is_done
            assert f"context.transaction.{name}(…) was not awaited" in settled[item].reason
            assert f"Write: await context.transaction.{name}(…)" in settled[item].reason
        assert stage.kept() == {}


@pytest.mark.parametrize(("workload", "database"), PLACES)
def test_what_is_awaited_in_any_way_is_done(workload: str, database: str, new_database: NewDatabase) -> None:
    with new_database(database) as url, open_stage(workload, url) as stage:
        settled = play(stage, {item: act for item, (act, _) in CAREFUL.items()})
        assert all(found.is_done for found in settled.values())
        assert {item: len(steps) for item, steps in stage.kept().items()} == {
            item: count for item, (_, count) in CAREFUL.items()
        }
