"""A desk to operate a queue from: an application in this process, and the commands run on it as a person would."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from holdfast import EngineProvider, Holdfast
from holdfast.cli.main import run_command
from holdfast.jobs.model import Failure, JobId, Success
from holdfast.records import audit
from holdfast.records.dead_letters import DeadLetter, DeadLetters
from tests.jobs.queues import ANNE, Queue


class Terminal(io.StringIO):
    """A person at a terminal who has typed something."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def items(self) -> list[Any]:
        found: list[Any] = self.json["items"]
        return found


class Desk:
    """An application over one database, and its commands."""

    def __init__(
        self,
        url: str,
        provider: EngineProvider,
        monkeypatch: pytest.MonkeyPatch,
        capture: pytest.CaptureFixture[str],
    ) -> None:
        self.hf = Holdfast(url, engine_provider=provider)
        self._monkeypatch = monkeypatch
        self._capture = capture
        module = ModuleType("desk_application")
        module.__dict__["hf"] = self.hf
        monkeypatch.setitem(sys.modules, "desk_application", module)
        monkeypatch.setenv("HOLDFAST_APP", "desk_application:hf")
        monkeypatch.setenv("LOGNAME", "eve")

    @property
    def queue(self) -> Queue:
        return Queue(self.hf.database)

    def __call__(self, *arguments: object, typed: str | None = None, piped: bytes = b"") -> Answer:
        pipe = io.TextIOWrapper(io.BytesIO(piped), "utf-8")
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", pipe if typed is None else Terminal(f"{typed}\n"))
            self._capture.readouterr()
            code = run_command([str(argument) for argument in arguments])
            printed = self._capture.readouterr()
        return Answer(code, printed.out, printed.err)

    def refused(self, code: int, *parts: str, arguments: tuple[object, ...], typed: str | None = None) -> None:
        """The command ends with `code` and one sentence that holds every part, without a traceback."""
        answer = self(*arguments, typed=typed)
        assert answer.code == code, answer
        assert "Traceback" not in answer.out + answer.err
        errors = [line for line in answer.err.splitlines() if "Error: " in line]
        assert len(errors) == 1, answer.err
        assert answer.err.splitlines()[-1] == errors[0]
        for part in parts:
            assert part in errors[0]

    def bury(self, error: str = "boom", **options: Any) -> JobId:
        """Add a job that fails for good at once."""
        queue = self.queue
        added = queue.add(max_attempts=1, **options)
        [job] = queue.claim(1, topics=(options.get("topic", "email"),))
        queue.store.fail(ANNE, [Failure(job.claim, 5, error)])
        return added.id

    def finish(self, output: str | None = None, **options: Any) -> JobId:
        """Add a job that succeeds at once."""
        queue = self.queue
        queue.add(**options)
        [job] = queue.claim(1, topics=(options.get("topic", "email"),))
        queue.store.complete(ANNE, [Success(job.claim, 7, output)])
        return job.id

    def letter(self, job_id: JobId) -> DeadLetter:
        return DeadLetters(self.hf.database).of_item(f"job-{job_id}")[-1]

    def audited(self) -> list[tuple[str, str, str]]:
        return [(row.actor, row.action, row.target) for row in audit.page(self.hf.database).items]
