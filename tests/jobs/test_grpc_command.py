"""``holdfast jobs-server`` as people start it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from holdfast.cli.jobs_server import _serve
from holdfast.cli.main import run_command
from holdfast.core.bearer import token_hash
from holdfast.core.errors import WorkerDiedError
from holdfast.jobs.grpc.client import RemoteQueue
from holdfast.jobs.grpc.server import JobsServer
from holdfast.jobs.grpc.watch import Watch
from holdfast.jobs.watchdog import Watchdog
from holdfast.runtime.housekeeping import Chore
from tests.components.processes import PythonWorker
from tests.jobs.queues import open_queue
from tests.jobs.remote import QUICK_SERVER, TOKEN, Authority

APP = """
import os
from holdfast import Holdfast

hf = Holdfast(os.environ["QUEUE_URL"])

@hf.job("email", max_attempts=7, concurrency=3)
def send(to: str) -> None: ...
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "remote_app_under_test.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tokens").write_text(token_hash(TOKEN) + "\n")
    sys.modules.pop("remote_app_under_test", None)
    return tmp_path


def test_the_command_serves_until_it_is_told_to_stop(directory: Path, sqlite_url: str) -> None:
    authority = Authority(directory)
    arguments = [
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        "tokens",
        "--tls-cert",
        "server.pem",
        "--tls-key",
        "server.key",
    ]
    code = (
        f"import os, sys; os.chdir({str(directory)!r}); from holdfast.cli.main import run_command; "
        "assert run_command(['migrate', 'remote_app_under_test:hf']) == 0; "
        f"sys.exit(run_command(['jobs-server', 'remote_app_under_test:hf', *{arguments!r}]))"
    )
    with PythonWorker("-c", code, environment={"QUEUE_URL": sqlite_url}) as process:
        line = process.wait_for_line("Serving remote workers on")
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None
        with RemoteQueue(found[0], token=TOKEN, tls=authority.client_tls) as remote:
            added = remote.enqueue("email", "send", {"to": "a@b.example"})
        with open_queue(sqlite_url) as queue:
            assert queue.column(added.id, "max_attempts") == 7
            assert [(topic.name, topic.limits.max_running) for topic in queue.store.topics()] == [("email", 3)]
        process.terminate()
        assert process.wait() == 0
        assert "Stopped. Workers keep what they hold" in process.output


class Counting:
    """Something that the server does now and then."""

    def tick(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("lost", "owner", "step"),
    [
        ("the promoter", Watch, "_promoted"),
        ("housekeeping", Counting, "tick"),
        ("the watchdog", Watchdog, "reap"),
    ],
)
def test_a_server_that_loses_a_part_ends_and_says_which(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, lost: str, owner: type, step: str
) -> None:
    def die(*_: object) -> None:
        raise SystemExit("planted")

    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    with open_queue(sqlite_url) as queue:
        monkeypatch.setattr(owner, step, die)
        chores = [Chore("counting", Counting().tick, 60)]
        server = JobsServer(queue.store, "127.0.0.1:0", settings=QUICK_SERVER, chores=chores)
        with pytest.raises(WorkerDiedError, match=f"The server has lost {lost}"):
            _serve(server, "127.0.0.1:0", 1.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--listen", "0.0.0.0:0"], "TLS and a token file are missing"),
        (["--listen", "0.0.0.0:0", "--token-file", "tokens"], "TLS is missing"),
        (["--tls-cert", "x"], "belong together"),
        (["--tls-client-ca", "x"], "needs TLS"),
        (["--token-file", "missing"], "cannot be read"),
        (["--listen", "nowhere", "--insecure"], "is no address to listen on"),
    ],
)
def test_a_server_that_would_be_open_or_half_configured_does_not_start(
    directory: Path,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("QUEUE_URL", sqlite_url)
    assert run_command(["migrate", "remote_app_under_test:hf"]) == 0
    assert run_command(["jobs-server", "remote_app_under_test:hf", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_missing_tables_are_told(
    directory: Path, empty_sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUE_URL", empty_sqlite_url)
    assert run_command(["jobs-server", "remote_app_under_test:hf"]) == 2
    assert "holdfast migrate" in capsys.readouterr().err
