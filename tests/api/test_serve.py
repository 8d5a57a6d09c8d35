"""``holdfast serve`` as people start it."""

from __future__ import annotations

import re
import socket
import sys
import threading
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from holdfast import EngineProvider, Holdfast
from holdfast.api import ApiTokens, Role
from holdfast.cli.main import run_command
from holdfast.records import audit
from holdfast.records.seals import verify
from tests.components.ports import free_port
from tests.components.processes import PythonWorker, wait_until
from tests.jobs.remote import Authority
from tests.records.samples import add_letter

APP = """
import os
from holdfast import Holdfast

hf = Holdfast(os.environ["DB_URL"])
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "served_app_under_test.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("served_app_under_test", None)
    return tmp_path


def process(directory: Path, url: str, *arguments: str) -> PythonWorker:
    """Start the command in a process of its own, where a warning is an error."""
    command = ["serve", "served_app_under_test:hf", "--port", "0", *arguments]
    code = (
        f"import os, sys; os.chdir({str(directory)!r}); from holdfast.cli.main import run_command; "
        f"sys.exit(run_command({command!r}))"
    )
    return PythonWorker("-W", "error", "-c", code, environment={"DB_URL": url})


def address_of(served: PythonWorker) -> str:
    found = re.search(r"(https?://\S+) in process", served.wait_for_line("Serving "))
    assert found is not None
    return found[1]


def test_it_serves_on_this_machine_until_it_is_told_to_stop(directory: Path, sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    letter = add_letter(hf.database)
    with process(directory, sqlite_url, "-v") as served:
        address = address_of(served)
        assert address.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=address) as client:
            answer = client.get("/api/dlq", headers={"X-Correlation-Id": "c-9"})
            assert answer.json()["data"]["items"][0]["rowKey"] == letter.row_key
            assert answer.headers["x-correlation-id"] == "c-9"
            assert "server" not in answer.headers
            assert client.get("/api/dlq", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 401
        served.wait_for_line("GET '/api/dlq' by loopback: 200")
        served.terminate()
        assert served.wait() == 0
        assert served.lines[-1] == "Stopped: no request is open any more."


def audited(hf: Holdfast) -> None:
    with hf.database.begin() as connection:
        audit.record(connection, "anne", "dlq resolve", "key")


def test_13_16_it_seals_what_people_change_though_no_worker_runs(directory: Path, sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    audited(hf)
    with process(directory, sqlite_url) as served:
        address_of(served)
        wait_until(lambda: verify(hf.database).unsealed_rows == 0, "the audit to be sealed")
        served.terminate()
        assert served.wait() == 0
    assert verify(hf.database).seals == 1


def test_13_16_an_application_without_workers_can_seal_from_a_timer(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    audited(hf)
    hf.seal_audit()
    assert (verify(hf.database).seals, verify(hf.database).unsealed_rows) == (1, 0)


def test_a_request_that_is_open_when_it_is_told_to_stop_is_answered(directory: Path, postgres_url: str) -> None:
    provider = EngineProvider()
    hf = Holdfast(postgres_url, engine_provider=provider)
    hf.migrate()
    letter = add_letter(hf.database)
    answers: list[httpx.Response] = []
    with process(directory, postgres_url) as served, hf.database.connect() as lock:
        address = address_of(served)
        lock.execute(text("LOCK TABLE holdfast_dead_letters IN ACCESS EXCLUSIVE MODE"))
        asking = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/api/dlq", timeout=60)))
        asking.start()
        wait_until(lambda: is_waiting(hf), "the request to wait for the database")
        served.terminate()
        wait_until(lambda: not is_reachable(address), "the server to take no more requests")
        assert not answers
        lock.rollback()
        asking.join(60)
        assert served.wait() == 0
    assert answers[0].json()["data"]["items"][0]["rowKey"] == letter.row_key
    provider.dispose_all()


def is_waiting(hf: Holdfast) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() "
        "AND query LIKE '%original_message%'"  # and not housekeeping, which waits, too
    )
    with hf.database.connect() as connection:
        return bool(connection.execute(text(query)).scalar_one())


def is_reachable(address: str) -> bool:
    try:
        httpx.get(f"{address}/api/history", timeout=10)
    except httpx.TransportError:
        return False
    return True


def test_with_tokens_and_tls_for_other_machines(
    directory: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Holdfast(sqlite_url).migrate()
    assert run_command(["serve", "--new-token", "anne", "--role", "read", "--role", "payload"]) == 0
    printed = capsys.readouterr()
    token = printed.err.split()[-1]
    assert token not in printed.out
    (directory / "tokens").write_text(printed.out)
    (directory / "key").write_text("a secret that is shared\n")
    Authority(directory)
    caller = ApiTokens.read(directory / "tokens").caller(f"Bearer {token}")
    assert caller is not None
    assert (caller.name, caller.roles) == ("anne", frozenset({Role.READ, Role.PAYLOAD}))
    arguments = ["--host", "0.0.0.0", "--tokens", "tokens", "--continuation-key", "key"]
    arguments += ["--tls-cert", "server.pem", "--tls-key", "server.key", "--rate", "1", "--burst", "2"]
    with process(directory, sqlite_url, *arguments) as served:
        address = address_of(served).replace("0.0.0.0", "127.0.0.1")
        assert address.startswith("https://")
        with httpx.Client(base_url=address, verify=False) as client:
            assert client.get("/api/dlq").status_code == 401
            headers = {"Authorization": f"Bearer {token}"}
            assert [client.get("/api/dlq", headers=headers).status_code for _ in range(3)] == [200, 200, 429]
        served.interrupt()
        assert served.wait() == 0
        assert token not in served.output


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--host", "0.0.0.0"], 2, "Give --tokens, or listen on 127.0.0.1"),
        (["--host", "::"], 2, "can be reached from other machines"),
        (["--host", "example.com"], 2, "can be reached from other machines"),
        (["--tokens", "missing"], 2, "cannot be read"),
        (["--tokens", "wrong"], 2, "does not begin with the SHA-256"),
        (["--tls-cert", "x"], 2, "belong together"),
        (["--tls-cert", "wrong", "--tls-key", "wrong"], 2, "The TLS certificate or its key cannot be used"),
        (["--continuation-key", "missing"], 2, "cannot be read"),
        (["--continuation-key", "wrong"], 2, "at least 16"),
        (["--port", "70000"], 2, "--port"),
        (["--role", "read"], 2, "--new-token"),
        (["--new-token", "anne"], 2, "a token needs a --role"),
        (["--new-token", "anne", "--role", "write"], 2, "read, payload, operate, admin"),
        (["--new-token", "anne smith", "--role", "read"], 2, "cannot name a token"),
    ],
)
def test_a_server_that_would_be_open_or_half_configured_does_not_start(
    directory: Path,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    told: str,
) -> None:
    monkeypatch.setenv("DB_URL", sqlite_url)
    (directory / "wrong").write_text("s3cret\n")
    assert run_command(["migrate", "served_app_under_test:hf"]) == 0
    assert run_command(["serve", "served_app_under_test:hf", *arguments]) == code
    error = capsys.readouterr().err
    assert told in error
    assert "s3cret" not in error


def test_a_port_that_is_taken_and_missing_tables_are_one_sentence(
    directory: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DB_URL", sqlite_url)
    assert run_command(["serve", "served_app_under_test:hf"]) == 2
    assert "holdfast migrate" in capsys.readouterr().err
    assert run_command(["migrate", "served_app_under_test:hf"]) == 0
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = str(taken.getsockname()[1])
        assert run_command(["serve", "served_app_under_test:hf", "--port", port]) == 1
    assert f"Cannot listen on 127.0.0.1, port {port}: Address already in use" in capsys.readouterr().err
