"""Attempts that go on after they lost their job: stopped past their lease, or dead. None of them can end the job.

The stop is a real SIGSTOP. Time is stepped where that changes nothing: the lease has then passed for whoever reaps.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.core.errors import Unavailable
from holdfast.jobs.model import JobStatus
from tests.components.processes import PythonWorker, wait_until
from tests.jobs.faults.account import LEASE_EXPIRED
from tests.jobs.faults.app import NO_ATTEMPT_GUARD, POISON_ATTEMPTS
from tests.jobs.faults.conftest import Scene

ROUNDS = 3


def reaped_while_suspended(scene: Scene, worker: PythonWorker) -> list[JobStatus]:
    """Stop the worker and reap its job. One that was stopped with the job's lock in its hands is stopped again."""

    def reaped() -> list[JobStatus]:
        worker.suspend()
        with suppress(Unavailable):
            if found := list(scene.later.reap().values()):
                return found
        worker.resume()
        return []

    return wait_until(reaped, "the job to be reaped")


def self_zombie(scene: Scene, worker: PythonWorker, folder: Path, n: int) -> list[int]:
    """Let a worker's old attempt end while it runs the same job again; return the attempts whose writes are kept.

    The worker is stopped inside the handler, another process reaps the job, the same worker claims it again, and only
    then the old handler writes and returns.
    """
    job_id = scene.stage(folder, n, "held")
    (folder / "leave-1").touch()
    (folder / "leave-2").touch()
    wait_until(lambda: worker.lines.count("begun attempt 1") == n, "the first attempt")
    assert reaped_while_suspended(scene, worker) == [JobStatus.SUSPECT]
    scene.let_suspects_wait_no_longer()
    worker.resume()
    wait_until(lambda: worker.lines.count("begun attempt 2") == n, "the same worker to claim it again")
    (folder / "write-1").touch()
    refused = f"Job {job_id}, attempt 1, is no longer"
    wait_until(lambda: refused in worker.output or scene.effects(n), "the old attempt to end")
    (folder / "write-2").touch()
    too_late = f"Job {job_id}, attempt 2, is no longer"  # when the first has ended the job, by a planted bug
    wait_until(
        lambda: worker.lines.count("leaving attempt 2") == n or too_late in worker.output, "the second attempt to leave"
    )
    wait_until(lambda: scene.view(job_id) is None, "the job to end")
    worker.wait_for_line(f"Job {job_id}, attempt {2 if scene.effects(n) == [1] else 1}, is no longer")
    return scene.effects(n)


def test_the_old_attempt_of_the_same_worker_cannot_commit(scene: Scene, tmp_path: Path) -> None:
    with scene.worker() as worker:
        for n in range(1, ROUNDS + 1):
            assert self_zombie(scene, worker, tmp_path / str(n), n) == [2]


def test_without_the_attempt_guard_the_old_attempt_commits_every_time(scene: Scene, tmp_path: Path) -> None:
    """Planted bug: the same schedule must show that both attempts end the job, the stale one first."""
    with scene.worker(PLANTED_BUG=NO_ATTEMPT_GUARD) as worker:
        for n in range(1, ROUNDS + 1):
            assert self_zombie(scene, worker, tmp_path / str(n), n) == [1]


def test_a_worker_stopped_inside_its_transaction_cannot_commit_after_a_takeover(
    server_scene: Scene, tmp_path: Path
) -> None:
    scene, folder = server_scene, tmp_path / "stage"
    job_id = scene.stage(folder, 1)
    for flag in "write-1", "write-2", "leave-2":
        (folder / flag).touch()
    with scene.worker() as stopped:
        stopped.wait_for_line("inside attempt 1")
        stopped.suspend()
        with scene.worker() as taker:
            taker.wait_for_line("leaving attempt 2")
            wait_until(lambda: scene.view(job_id) is None, "the takeover to commit")
            assert scene.effects(1) == [2]
            (folder / "leave-1").touch()
            stopped.resume()
            stopped.wait_for_line(f"Job {job_id}, attempt 1, is no longer")
    assert scene.effects(1) == [2]
    assert scene.history(job_id) == [(2, "Succeeded")]


def test_on_sqlite_nobody_can_take_over_from_a_stopped_transaction(file_scene: Scene, tmp_path: Path) -> None:
    """It holds the write lock, so nobody can reap it when its lease has passed; when it goes on, it commits."""
    scene, folder = file_scene, tmp_path / "stage"
    job_id = scene.stage(folder, 1)
    for flag in "write-1", "write-2", "leave-2":
        (folder / flag).touch()
    with scene.worker() as stopped:
        stopped.wait_for_line("inside attempt 1")
        stopped.suspend()
        with scene.worker() as waiting:
            waiting.wait_for_line("starting")
            wait_until(lambda: lease_has_passed(scene, job_id), "the lease to pass")
            view = scene.view(job_id)
            assert view is not None
            assert (view.status, view.columns["attempt"]) == (JobStatus.RUNNING, 1)
            (folder / "leave-1").touch()
            stopped.resume()
            wait_until(lambda: scene.view(job_id) is None, "the job to end")
            assert "begun attempt 2" not in waiting.lines
    assert scene.effects(1) == [1]
    assert scene.history(job_id) == [(1, "Succeeded")]


def lease_has_passed(scene: Scene, job_id: int) -> bool:
    view = scene.hf.jobs.get(job_id)
    return view is not None and bool(view.columns["lease_until"] < scene.hf.jobs.store.now())


def test_a_job_that_kills_every_worker_ends_in_the_dead_letters(scene: Scene) -> None:
    job_id = scene.jobs["poison"].enqueue(n=1, note="größer ☃").id
    decided: list[JobStatus] = []
    for _ in range(POISON_ATTEMPTS + 1):
        with scene.worker() as worker:
            assert worker.wait() == -9
        decided += scene.later.reap().values()
        scene.let_suspects_wait_no_longer()
    assert decided == [*[JobStatus.SUSPECT] * POISON_ATTEMPTS, JobStatus.DEAD]
    [letter] = scene.rows("SELECT * FROM holdfast_dead_letters")
    assert letter["error_message"] == LEASE_EXPIRED
    assert letter["original_message"] == '{"n":1,"note":"größer ☃"}'
    assert letter["dequeue_count"] == POISON_ATTEMPTS + 1
    assert scene.history(job_id) == [(attempt, "Failed") for attempt in range(2, POISON_ATTEMPTS + 2)]
    assert scene.effects(1) == []
