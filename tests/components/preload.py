"""Faults inside a process: a wall clock that jumps (libfaketime) and a disk that fails (libfiu).

Both are shared libraries that a process is started with. They are told what to do while it runs: the clock by a file
with its offset, the disk through a pair of FIFOs that libfiu makes.
"""

import os
import select
from collections.abc import Mapping
from pathlib import Path

from tests.components.workspace import private_directory

LIBRARIES = Path("/usr/lib")
FAKETIME = "*/faketime/libfaketimeMT.so.1"
FIU = (Path("/usr/lib/fiu/fiu_run_preload.so"), Path("/usr/lib/fiu/fiu_posix_preload.so"))
SHARED_MEMORY = Path("/dev/shm")


def find_faketime() -> Path | None:
    """Return the library for processes with threads, None when it is not installed."""
    return next(LIBRARIES.glob(FAKETIME), None)


def find_fiu() -> tuple[Path, ...] | None:
    """Return the libraries, None when one is not installed."""
    return FIU if all(library.is_file() for library in FIU) else None


class WallClock:
    """The wall clock of one process, or of several that share a machine; their monotonic clock stays right.

    Under it `time.sleep` fails on Python 3.11: wait for an event instead.
    """

    def __init__(self) -> None:
        self._offset = private_directory("clock") / "offset"
        self.jump_to(0)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump_to(self, offset_seconds: int) -> None:
        """Set how far the clock is ahead of the real one."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{offset_seconds:+d}\n")
        new.replace(self._offset)  # a reader must never find half of it


def forget_faketime(pid: int) -> None:
    """Remove what libfaketime leaves behind when its process is killed."""
    for name in f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}":
        (SHARED_MEMORY / name).unlink(missing_ok=True)


class FailingDisk:
    """Tells processes started with `environment` to let some of their writes fail."""

    def __init__(self) -> None:
        self._prefix = private_directory("disk") / "fiu"

    @property
    def environment(self) -> Mapping[str, str]:
        return {"FIU_CTRL_FIFO": str(self._prefix)}

    def fail(self, pid: int, point: str, error_number: int, probability: float) -> bool:
        """Let calls at `point` fail from now on; return whether the process said that it does. Heal it either way."""
        command = f"enable_random name={point},probability={probability:g},failinfo={error_number:d}"
        return self._tell(pid, command) == "0"

    def heal(self, pid: int, point: str) -> bool:
        """Let calls at `point` succeed again; return whether the process answered."""
        return self._tell(pid, f"disable name={point}") is not None

    def forget(self, pid: int) -> None:
        """Remove the FIFOs of a process that was killed."""
        for end in "in", "out":
            Path(f"{self._prefix}-{pid}.{end}").unlink(missing_ok=True)

    def _tell(self, pid: int, command: str) -> str | None:
        try:
            answers = os.open(f"{self._prefix}-{pid}.out", os.O_RDWR | os.O_NONBLOCK)
        except FileNotFoundError:  # it has just started
            return None
        try:
            commands = os.open(f"{self._prefix}-{pid}.in", os.O_RDWR | os.O_NONBLOCK)
            try:
                os.write(commands, f"{command}\n".encode())
                return _answer(answers)
            finally:
                os.close(commands)
        finally:
            os.close(answers)


def _answer(descriptor: int, patience_seconds: float = 1.0) -> str | None:
    """Return one line from a FIFO, None when the process is too busy, or stopped, to write it."""
    ready, _, _ = select.select([descriptor], [], [], patience_seconds)
    return os.read(descriptor, 100).decode().strip() if ready else None
