"""The tables of engines in each place they can be, as tests want them."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from azure.data.tables import TableServiceClient
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.core.clock import Clock
from holdfast.core.config import DbConfig
from holdfast.core.errors import Conflict
from holdfast.database.migrations import migrate
from holdfast.database.pools import EngineProvider
from holdfast.engines.tables.azure import AzureTables
from holdfast.engines.tables.config import EngineTables
from holdfast.records.audited import AuditedLetters
from holdfast.records.combined_tables import CombinedHistory, CombinedLetters
from holdfast.records.dead_letters import DeadLetter
from holdfast.records.history import HistoryEntry, HistoryStatus, NewEntry
from holdfast.records.paging import Page
from holdfast.records.protocol import HistoryTable, LetterTable
from holdfast.records.schema import MIGRATIONS, metadata
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.records.samples import letter

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Tables:
    """Dead letters and history in one place."""

    letters: LetterTable
    history: HistoryTable


@contextlib.contextmanager
def migrated_engine(url: str) -> Iterator[Engine]:
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=url))
    migrate(engine, MIGRATIONS)
    yield engine
    provider.dispose_all()


def sql_tables(engine: Engine) -> Tables:
    """Return the tables of a database, emptied."""
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(text(f"DELETE FROM {table.name}"))
    return Tables(SqlLetterTable(engine), SqlHistoryTable(engine))


@contextlib.contextmanager
def azure_tables(connection_string: str, *, clock: Clock | None = None) -> Iterator[AzureTables]:
    """Yield new tables in a storage account."""
    with made_tables(connection_string, new_names(), clock=clock) as opened:
        yield opened


def new_names() -> EngineTables:
    suffix = uuid.uuid4().hex
    return EngineTables(f"engineDlq{suffix}", f"engineHistory{suffix}")


@contextlib.contextmanager
def made_tables(connection_string: str, names: EngineTables, *, clock: Clock | None = None) -> Iterator[AzureTables]:
    """Yield tables in a storage account, made if they are missing."""
    with TableServiceClient.from_connection_string(connection_string) as service:
        opened = AzureTables(service, names, clock=clock)
        opened.make()
        yield opened


def add_letter(tables: Tables, /, **differences: Any) -> DeadLetter:
    new = letter(**differences)
    assert tables.letters.add(new)
    return new


def add_all(tables: Tables, letters: Sequence[DeadLetter]) -> None:
    for new in letters:
        assert tables.letters.add(new)


def add_entry(tables: Tables, /, **differences: Any) -> HistoryEntry:
    values: dict[str, Any] = {
        "engine": "hmac",
        "operation": "rotate",
        "status": HistoryStatus.SUCCEEDED,
        "duration_ms": 12,
        "correlation_id": "c-1",
        **differences,
    }
    return tables.history.add(NewEntry(**values))


def everything(page: Callable[[str | None], Page[Item]], meanwhile: Callable[[], object] = lambda: None) -> list[Item]:
    """Return the rows of all pages; something may happen between them."""
    found, after = list[Item](), None
    while True:
        one = page(after)
        found += one.items
        after = one.continuation_token
        if after is None:
            return found
        meanwhile()


def at_once(calls: Sequence[Callable[[], Item]]) -> list[Item | Conflict]:
    """Do all calls in threads that start together; return what each returned, or its conflict."""
    outcomes, failures = list[Item | Conflict](), list[BaseException]()
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Item]) -> None:
        try:
            start.wait(60)
            outcomes.append(call())
        except Conflict as conflict:
            outcomes.append(conflict)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for failure in failures:
        raise failure
    assert len(outcomes) == len(calls), "a thread hangs"
    return outcomes


def check_race_to_resolve(tables: Tables, new: DeadLetter) -> None:
    """Let two people resolve a letter at once: one wins, the other is told, and the letter is the winner's."""
    check_race(
        tables,
        new,
        [partial(tables.letters.resolve, new.engine, new.row_key, f"by {name}", name) for name in ("anne", "bert")],
    )


def check_race(tables: Tables, new: DeadLetter, calls: Sequence[Callable[[], DeadLetter]]) -> None:
    """Let two people settle a letter at once: one wins, the other is told, and the letter is the winner's."""
    outcomes = at_once(calls)
    won = [outcome for outcome in outcomes if isinstance(outcome, DeadLetter)]
    assert len(won) == 1, f"{len(won)} of two won"
    assert tables.letters.get(new.engine, new.row_key) == won[0]


@contextlib.contextmanager
def routed_tables(connection_string: str, engine: Engine) -> Iterator[Tables]:
    """Yield new tables of engines in a storage account, and those of the workloads in a database, emptied."""
    workloads = sql_tables(engine)
    with azure_tables(connection_string) as opened:
        yield Tables(
            CombinedLetters(AuditedLetters(opened.letters, engine), workloads.letters),
            CombinedHistory(opened.history, workloads.history),
        )
