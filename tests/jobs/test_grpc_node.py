"""Another language can work with nothing but the published .proto: a worker in Node.js over TLS."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.components.node import MODULES, node_command
from tests.components.processes import REPOSITORY, start_leashed, wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.remote import TOKEN, Authority, Remote

pytestmark = pytest.mark.component("node_grpc")

WORKER = Path(__file__).parent / "node_worker" / "worker.js"
PROTO = REPOSITORY / "src" / "holdfast" / "jobs" / "grpc" / "holdfast_jobs.proto"


@pytest.fixture
def queue(postgres_url: str) -> Iterator[Queue]:
    with open_queue(postgres_url) as opened:
        yield opened


@pytest.fixture
def remote(queue: Queue, tmp_path: Path) -> Iterator[Remote]:
    with Remote(queue, authority=Authority(tmp_path)).serving() as served:
        yield served


class NodeWorker:
    """The process, and what it said."""

    def __init__(self, remote: Remote, directory: Path, token: str = TOKEN) -> None:
        assert remote.tls is not None
        config = {
            "modules": str(MODULES),
            "proto": str(PROTO),
            "target": remote.target().replace("127.0.0.1", "localhost"),
            "ca": str(remote.tls.ca_file),
            "token": token,
            "topic": "sums",
            "capacity": 4,
            "beat_milliseconds": 200,
        }
        path = directory / "config.json"
        path.write_text(json.dumps(config))
        self.log = directory / "output"
        self.process = start_leashed(node_command(WORKER, str(path)), self.log, stdin=subprocess.PIPE)

    def stop(self) -> int:
        """Let it finish what it holds and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def node_worker(remote: Remote, directory: Path, token: str = TOKEN) -> Iterator[NodeWorker]:
    worker = NodeWorker(remote, directory, token)
    try:
        yield worker
    finally:
        worker.kill()


def test_a_worker_in_node_does_the_work(remote: Remote, tmp_path: Path) -> None:
    for n in range(19):
        remote.queue.add("sums", "add", json.dumps({"numbers": [n, 1000]}))
    bad = remote.queue.add("sums", "add", '{"fails": true}', max_attempts=2, retry_base_seconds=0.01)
    with node_worker(remote, tmp_path) as worker:
        remote.until_empty()
        assert worker.stop() == 0
        said = worker.log.read_text()
    succeeded = [entry for entry in remote.queue.history() if entry["status"] == "Succeeded"]
    assert sorted(json.loads(entry["output"])["sum"] for entry in succeeded) == [1000 + n for n in range(19)]
    [letter] = remote.queue.dead_letters()
    assert (letter["error_message"], letter["original_message"]) == ("told to fail, attempt 2", '{"fails": true}')
    assert (remote.queue.status(bad.id), remote.queue.column(bad.id, "failures")) == ("dead", 2)
    assert "beat " in said
    assert "refused" not in said


def test_a_worker_in_node_survives_a_server_that_restarts(remote: Remote, tmp_path: Path) -> None:
    remote.queue.add("sums", "add", '{"numbers": [1]}')
    with node_worker(remote, tmp_path) as worker:
        remote.until_empty()
        remote.stop()
        for n in range(5):
            remote.queue.add("sums", "add", json.dumps({"numbers": [n]}))
        remote.start()
        remote.until_empty()
        assert worker.stop() == 0
    assert len(remote.queue.history()) == 6


def test_a_worker_in_node_needs_the_token(remote: Remote, tmp_path: Path) -> None:
    with node_worker(remote, tmp_path, token="wrong") as worker:
        assert worker.process.wait(30) == 3
    wait_until(lambda: "UNAUTHENTICATED" in worker.log.read_text(), "the reason")
