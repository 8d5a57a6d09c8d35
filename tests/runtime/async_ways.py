"""The same for ``async def`` handlers: fewer ways, since their transaction is the same one behind an awaiting face."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tests.runtime.scenes import AsyncScene
from tests.runtime.ways import EVERYWHERE, MARIADB, POSTGRES, SQLITE, Then

_Do = Callable[[AsyncScene], Awaitable[None]]


@dataclass(frozen=True)
class AsyncWay:
    """Something an ``async def`` handler does to its transaction between two effects."""

    name: str
    do: _Do
    leads_to: dict[str, Then]


ASYNC_WAYS: dict[str, AsyncWay] = {}


def way(leads_to: dict[str, Then]) -> Callable[[_Do], _Do]:
    def enter(do: _Do) -> _Do:
        name = f"async-{getattr(do, '__name__', '').replace('_', '-')}"
        ASYNC_WAYS[name] = AsyncWay(name, do, leads_to)
        return do

    return enter


def _everywhere(then: Then) -> Callable[[_Do], _Do]:
    return way(dict.fromkeys(EVERYWHERE, then))


@_everywhere(Then.WHOLE)
async def nothing(scene: AsyncScene) -> None:
    """The control."""


@_everywhere(Then.ENDED)
async def commit(scene: AsyncScene) -> None:
    await scene.transaction.execute(text("COMMIT"))


@_everywhere(Then.ENDED)
async def rollback_behind_a_comment(scene: AsyncScene) -> None:
    await scene.transaction.execute(text("/* no */ ROLLBACK"))


@_everywhere(Then.ENDED)
async def commit_of_the_connection(scene: AsyncScene) -> None:
    await scene.transaction.commit()


@_everywhere(Then.ENDED)
async def rollback_of_the_connection(scene: AsyncScene) -> None:
    await scene.transaction.rollback()


@_everywhere(Then.ENDED)
async def commit_of_the_driver(scene: AsyncScene) -> None:
    await scene.transaction.run_sync(commit_driver)


@way({POSTGRES: Then.UNDONE, MARIADB: Then.WHOLE, SQLITE: Then.WHOLE})
async def caught_error(scene: AsyncScene) -> None:
    with suppress(DBAPIError):
        await scene.transaction.execute(text("INSERT INTO once VALUES (1)"))


@_everywhere(Then.WHOLE)
async def nested_that_is_released(scene: AsyncScene) -> None:
    async with scene.transaction.begin_nested():
        await scene.write_async("nested")


@_everywhere(Then.WHOLE)
async def nested_that_is_awaited_and_released(scene: AsyncScene) -> None:
    nested = await scene.transaction.begin_nested()
    await scene.write_async("nested")
    await nested.commit()


@_everywhere(Then.WHOLE)
async def nested_that_is_rolled_back(scene: AsyncScene) -> None:
    nested = await scene.transaction.begin_nested()
    await scene.write_async("nested")
    await nested.rollback()
    scene.call.written.remove("nested")


@_everywhere(Then.WHOLE)
async def nested_around_an_error(scene: AsyncScene) -> None:
    with suppress(DBAPIError):
        async with scene.transaction.begin_nested():
            await scene.transaction.execute(text("INSERT INTO once VALUES (1)"))


@_everywhere(Then.WHOLE)
async def nested_in_run_sync(scene: AsyncScene) -> None:
    await scene.transaction.run_sync(_nested, scene)


def commit_driver(connection: Connection) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.commit()


def _nested(connection: Connection, scene: AsyncScene) -> None:
    with connection.begin_nested():
        scene.write("nested", through=connection)
