"""Workers under SIGKILL, at random moments and at the boundaries of the flow: every message has exactly one end.

The short size runs with every test, the full one with ``make prove``.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, fields, replace

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from holdfast.engines.azure import AzureStorage
from holdfast.engines.registry import EngineTablesConfig
from holdfast.records.dead_letters import LetterFilter, LetterStatus
from holdfast.records.history import HistoryFilter, HistoryStatus
from tests.components.azurite import AzuriteServer
from tests.components.processes import PythonWorker, wait_until
from tests.engines.crash_fleet import EFFECTS, PLAIN, SINGLETON, Setting, application
from tests.engines.tables import everything

KINDS = [
    "sqlite_url",
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("azurite", marks=pytest.mark.component("azurite")),
]


@dataclass(frozen=True)
class Figures:
    """What became of the messages of a run."""

    messages: int
    kills: int
    succeeded: int
    dead_letters: int
    both: int
    neither: int
    twice: int
    effects: int
    repeated_after_success: int

    @property
    def is_sound(self) -> bool:
        return not (self.both or self.neither or self.twice or self.repeated_after_success)

    def __str__(self) -> str:
        return ", ".join(f"{field.name.replace('_', ' ')} {getattr(self, field.name)}" for field in fields(self))


class Run:
    """Messages, and the fleet that takes them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        if setting.connection_string is not None:
            suffix = uuid.uuid4().hex
            tables = EngineTablesConfig(dlq_table_name=f"dlq{suffix}", history_table_name=f"history{suffix}")
            account = AzureStorage.from_connection_string(setting.connection_string)
            made = Holdfast(setting.url, app_name=setting.app_name, engine_queues=account, engine_tables=account)
            made.migrate()
            made.registry.init(tables)
            made._provider.dispose_all()
        self.hf = application(setting)
        self.hf.migrate()
        with self.hf.database.begin() as connection:
            connection.execute(text(EFFECTS))
        self._sent: list[tuple[str, str]] = []

    def send(self, plain: int, alone: int) -> None:
        """Send messages of which some fail once or twice, and some until they are dead."""
        for engine, count in ((PLAIN, plain), (SINGLETON, alone)):
            for number in range(count):
                fails = {0: 99, 1: 1, 2: 2}.get(number % 10, 0)
                self.hf.engines.send(engine, {"n": number, "fails": fails}, correlation_id=f"{engine}-{number}")
                self._sent.append((engine, f"{engine}-{number}"))

    def succeeded(self) -> Counter[str]:
        wanted = HistoryFilter(status=HistoryStatus.SUCCEEDED)
        entries = everything(lambda after: self.hf.history.page(wanted, 100, after))
        return Counter(entry.correlation_id for entry in entries)

    def dead(self) -> Counter[str]:
        wanted = LetterFilter(status=LetterStatus.PENDING)
        letters = everything(lambda after: self.hf.dead_letters.page(wanted, 100, after))
        return Counter(letter.correlation_id for letter in letters)

    def is_over(self) -> bool:
        """Return whether the queues are empty."""
        if self.setting.connection_string is None:
            with self.hf.database.connect() as connection:
                return not connection.execute(text("SELECT count(*) FROM holdfast_jobs")).scalar_one()
        queues = [self.hf.engines.queue(name)._client for name in (PLAIN, SINGLETON)]  # type: ignore[attr-defined]  # Azure's
        return not any(client.get_queue_properties().approximate_message_count for client in queues)

    def figures(self, kills: int) -> Figures:
        done, dead = self.succeeded(), self.dead()
        known = [correlation_id for _, correlation_id in self._sent]
        with self.hf.database.connect() as connection:
            effects, repeated = connection.execute(text("SELECT count(*), sum(is_repeated) FROM effects")).one()
        return Figures(
            messages=len(known),
            kills=kills,
            succeeded=sum(each in done for each in known),
            dead_letters=sum(each in dead for each in known),
            both=sum(each in done and each in dead for each in known),
            neither=sum(each not in done and each not in dead for each in known),
            twice=sum(done[each] > 1 or dead[each] > 1 for each in known),
            effects=effects,
            repeated_after_success=repeated or 0,
        )

    def crash(self, timeout_seconds: float) -> Figures:
        """Let the fleet take all messages; return the figures."""
        with PythonWorker("-m", "tests.engines.crash_fleet", self.setting.rendered()) as fleet:

            def is_over() -> bool:
                assert fleet.running, fleet.output
                assert "surprise" not in fleet.output, fleet.output
                return self.is_over()

            wait_until(is_over, "the end of all messages", timeout_seconds)
            fleet.terminate()
            kills = int(fleet.wait_for_line("kills").split()[1])
        figures = self.figures(kills)
        self.hf._provider.dispose_all()
        return figures


@pytest.fixture(params=KINDS)
def setting(request: pytest.FixtureRequest, sqlite_url: str) -> Setting:
    given = request.getfixturevalue(request.param)
    is_azure = isinstance(given, AzuriteServer)
    return Setting(
        url=sqlite_url if is_azure else given,
        app_name="crash",
        queue=f"q{uuid.uuid4().hex[:12]}",
        connection_string=given.connection_string if is_azure else None,
    )


def test_workers_that_are_killed_leave_every_message_one_end(setting: Setting) -> None:
    run = Run(replace(setting, kills=15))
    run.send(plain=40, alone=6)
    figures = run.crash(60)
    assert figures.kills >= 15
    assert figures.is_sound, str(figures)


@pytest.mark.prove
@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_are_killed_for_minutes_leave_every_message_one_end(setting: Setting, seed: int) -> None:
    run = Run(replace(setting, kills=300, workers=4, seed=seed))
    run.send(plain=600, alone=60)
    figures = run.crash(1800)
    print(f"\nengines, {setting.url.split(':')[0]}, azure {setting.connection_string is not None}: {figures}")
    assert figures.kills >= 300
    assert figures.is_sound, str(figures)


PLANTED = [
    pytest.param("azurite", "recorded", "count first", marks=pytest.mark.component("azurite")),
    pytest.param("sqlite_url", "dropped", "drops first"),
]


@pytest.mark.parametrize(("setting", "boundary", "bug"), PLANTED, indirect=["setting"])
def test_a_planted_bug_is_caught(setting: Setting, boundary: str, bug: str) -> None:
    run = Run(replace(setting, kills=4, chance=0.5, boundary=boundary, bug=bug))
    run.send(plain=20, alone=0)
    figures = run.crash(60)
    assert not figures.is_sound, str(figures)
