"""A database with one workload on it, all cells of the suite run there at once, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.engine import Engine

from holdfast import EngineProvider
from tests.runtime.account import Outcome, violations
from tests.runtime.async_ways import ASYNC_WAYS, AsyncWay
from tests.runtime.scenes import TABLES, AsyncScene, Call, Deliberate, Ending
from tests.runtime.ways import PROCEDURES, WAYS, Then, Way
from tests.runtime.workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Cell:
    """One way and one ending: its name is the item's."""

    way: Way | AsyncWay
    ending: Ending

    @property
    def item(self) -> str:
        return f"{self.way.name}.{self.ending}"

    def then(self, database: str) -> Then:
        return self.way.leads_to[database]


def cells(database: str) -> list[Cell]:
    """Return the cells that exist on a database."""
    return [Cell(way, ending) for way in WAYS.values() if database in way.leads_to for ending in Ending]


def async_cells(database: str) -> list[Cell]:
    return [Cell(way, ending) for way in ASYNC_WAYS.values() if database in way.leads_to for ending in Ending]


@dataclass
class Stage:
    """A workload on a database of its own."""

    workload: Workload
    apart: Engine
    calls: dict[str, list[Call]] = field(default_factory=dict)

    @property
    def database(self) -> str:
        name = self.apart.dialect.name
        return "mariadb" if name == "mysql" else name

    def play(self, chosen: Sequence[Cell]) -> dict[str, Outcome]:
        """Run the cells until nothing more happens to any of them."""
        by_item = {cell.item: cell for cell in chosen}
        self.workload.add([*by_item])
        if any(isinstance(cell.way, AsyncWay) for cell in chosen):
            settled = self.workload.run([*by_item], self._acting_async(by_item), is_async=True)
        else:
            settled = self.workload.run([*by_item], self._acting(by_item))
        left_behind = self.end_prepared_transactions()
        kept = self.kept()
        return {
            item: Outcome(
                settled[item],
                self.calls.get(item, []),
                kept.get(item, []),
                [gid for gid in left_behind if gid.startswith(f"{item}:")],
            )
            for item in by_item
        }

    def violations(self, chosen: Sequence[Cell]) -> dict[str, list[str]]:
        """Run the cells; return the broken promises by item."""
        outcomes = self.play(chosen)
        judged = {cell.item: violations(outcomes[cell.item], cell.then(self.database), cell.ending) for cell in chosen}
        return {item: found for item, found in judged.items() if found}

    def scene(self, item: str, context: Any) -> AsyncScene:
        """Note a call of a handler."""
        calls = self.calls.setdefault(item, [])
        calls.append(Call(len(calls) + 1))
        return AsyncScene(item, calls[-1], lambda: context.transaction, self.apart)

    def _acting(self, by_item: dict[str, Cell]) -> Any:
        def act(item: str, context: Any) -> None:
            cell, scene = by_item[item], self.scene(item, context)
            with noted(scene.call):
                scene.write("before")
                cell.way.do(scene)
                scene.call.did = True
                scene.write("after")
                end_with(cell.ending)

        return act

    def _acting_async(self, by_item: dict[str, Cell]) -> Any:
        async def act(item: str, context: Any) -> None:
            cell, scene = by_item[item], self.scene(item, context)
            assert isinstance(cell.way, AsyncWay)
            with noted(scene.call):
                await scene.write_async("before")
                await cell.way.do(scene)
                scene.call.did = True
                await scene.write_async("after")
                end_with(cell.ending)

        return act

    def kept(self) -> dict[str, list[tuple[int, str]]]:
        """Return the effects that the database has, by item, as (call, step)."""
        found: dict[str, list[tuple[int, str]]] = {}
        with self.apart.connect() as connection:
            for item, number, step in connection.execute(text("SELECT item, call_number, step FROM effects")):
                found.setdefault(item, []).append((number, step))
        return found

    def end_prepared_transactions(self) -> list[str]:
        """Undo what was prepared on PostgreSQL and is still there; return the names."""
        if self.database != "postgresql":
            return []
        mine = text("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        with self.apart.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            found = [gid for (gid,) in connection.execute(mine)]
            for gid in found:
                connection.exec_driver_sql(f"ROLLBACK PREPARED '{gid}'")
        return found


@contextmanager
def noted(call: Call) -> Iterator[None]:
    """Note how a call ended."""
    try:
        yield
        call.returned = True
    except BaseException as error:
        call.error = f"{type(error).__name__}: {error}"
        raise


def end_with(ending: Ending) -> None:
    if ending is Ending.RAISES:
        raise Deliberate


@contextmanager
def open_stage(workload: str, url: str, *, lease_seconds: float = 30.0) -> Iterator[Stage]:
    """Yield a workload on an empty database."""
    provider, apart = EngineProvider(), create_engine(url, poolclass=NullPool)
    stage = Stage(WORKLOADS[workload](url, provider, lease_seconds=lease_seconds), apart)
    try:
        stage.workload.app().migrate()
        with apart.begin() as connection:
            for statement in (*TABLES, *PROCEDURES[stage.database]):
                connection.exec_driver_sql(statement)
        yield stage
    finally:
        stage.end_prepared_transactions()
        provider.dispose_all()
        apart.dispose()
