"""The faults inside a process do what they say: the clock jumps, the disk fails, and both recover."""

import errno

import pytest

from tests.components.preload import FailingDisk, WallClock, find_faketime, find_fiu, forget_faketime
from tests.components.processes import PythonWorker, wait_until
from tests.components.workspace import private_directory

CLOCK = """
import datetime, threading, time
started, pause = time.monotonic(), threading.Event()
while not pause.wait(0.02):
    print(datetime.datetime.now().year, time.monotonic() - started < 120, flush=True)
"""
WRITER = """
import sqlite3, sys, threading
connection, pause = sqlite3.connect(sys.argv[1], isolation_level=None), threading.Event()
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE t (n)")
while not pause.wait(0.02):
    try:
        connection.execute("INSERT INTO t VALUES (1)")
        print("written", flush=True)
    except sqlite3.OperationalError as error:
        print(error, flush=True)
"""
YEARS = 40 * 366 * 86_400


@pytest.mark.component("faketime")
def test_the_wall_clock_jumps_and_the_monotonic_one_does_not() -> None:
    library = find_faketime()
    assert library is not None
    clock = WallClock()
    with PythonWorker("-c", CLOCK, environment=clock.environment, preload=[library]) as process:
        process.wait_for_line("True")
        clock.jump_to(-YEARS)
        wait_until(lambda: year(process) < 2000, "the past")
        clock.jump_to(YEARS)
        wait_until(lambda: year(process) > 2060, "the future")
        assert not any(line.endswith("False") for line in process.lines)
    forget_faketime(process.pid)


def year(process: PythonWorker) -> int:
    return int(process.lines[-1].split()[0])


@pytest.mark.component("libfiu")
def test_the_disk_fails_and_recovers() -> None:
    libraries = find_fiu()
    assert libraries is not None
    disk = FailingDisk()
    path = private_directory("disk-test") / "test.db"
    with PythonWorker("-c", WRITER, str(path), environment=disk.environment, preload=libraries) as process:
        process.wait_for_line("written")
        assert disk.fail(process.pid, "posix/io/rw/pwrite", errno.ENOSPC, 1.0)
        process.wait_for_line("full")
        assert disk.heal(process.pid, "posix/io/rw/pwrite")
        failures = len(process.lines)
        wait_until(lambda: "written" in process.lines[failures:], "a write after the disk has recovered")
    disk.forget(process.pid)
