"""Child processes that never outlive the test run, and waiting without sleeping.

Crash tests need a real process to kill or suspend, and a way to wait for what it did. Everything here is
addressed by process id; nothing is ever looked up by name.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from tests.components.workspace import private_directory

REPOSITORY = Path(__file__).resolve().parents[2]
LEASH = Path(__file__).with_name("leash.py")
POLL_SECONDS = 0.02
LONGEST_TURN_SECONDS = 1.0

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value | None], what: str, timeout_seconds: float = 60.0) -> Value:
    """Return the first truthy value of `condition`; fail after `timeout_seconds`, naming `what`.

    A turn counts at most a second: while the machine stands still, nothing can happen that is waited for.
    """
    left, looked_at = timeout_seconds, time.monotonic()
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if left <= 0:
            raise TimeoutError(f"waited {timeout_seconds:g} s in vain for: {what}")
        pause.wait(POLL_SECONDS)
        now = time.monotonic()
        left, looked_at = left - min(now - looked_at, LONGEST_TURN_SECONDS), now


def leashed(
    command: Sequence[str],
    *,
    user: str | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
) -> list[str]:
    """Return the command line that runs `command` as `user` and ends it when this process dies.

    The kernel watches the thread that starts the process, so start it from a thread that lives as long.
    """
    leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(int(death_signal)), user or "-"]
    return [*leash, *command]


def start_leashed(
    command: Sequence[str],
    log: Path,
    *,
    user: str | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
    directory: Path = REPOSITORY,
    stdin: int | IO[str] = subprocess.DEVNULL,
) -> subprocess.Popen[str]:
    """Start `command` in its own session, its output appended to `log`."""
    with log.open("a") as output:
        return subprocess.Popen(
            leashed(command, user=user, death_signal=death_signal),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            start_new_session=True,
            text=True,
        )


class PythonWorker:
    """A Python process under test: start it, watch its output, kill or suspend it.

    `arguments` are those of the interpreter: `("-c", code)`, `("-m", "package.module")` or a script's path.
    The repository root and `src` are importable, output is unbuffered and kept in a file, so that lines
    written just before a SIGKILL can be read afterwards. `preload` are shared libraries (see `preload.py`).
    """

    def __init__(
        self, *arguments: str, environment: Mapping[str, str] | None = None, preload: Sequence[Path] = ()
    ) -> None:
        self.log = private_directory("worker") / "output"
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        libraries = ["env", f"LD_PRELOAD={' '.join(map(str, preload))}"] if preload else []
        self._process = start_leashed(
            [*libraries, sys.executable, "-u", *arguments],
            self.log,
            environment={"PYTHONPATH": path, **(environment or {})},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        return self.log.read_text()

    @property
    def lines(self) -> list[str]:
        """Complete lines written so far."""
        return [line.rstrip("\n") for line in self.output.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_line(self, text: str, timeout_seconds: float = 30.0) -> str:
        """Return the first complete line with `text` in it; fail at once if the process ends without it."""

        def found() -> str | None:
            ended = not self.running
            line = next((line for line in self.lines if text in line), None)
            if line is None and ended:
                raise AssertionError(f"worker {self.pid} ended without writing {text!r}:\n{self.output}")
            return line

        line = wait_until(found, f"{text!r} from worker {self.pid}", timeout_seconds)
        assert line is not None
        return line

    def wait(self, timeout_seconds: float = 30.0) -> int:
        """Return the exit status (negative: the signal that ended it)."""
        return self._process.wait(timeout_seconds)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM) without waiting."""
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """Send what Ctrl-C sends (SIGINT) without waiting."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL and reap; no code of the worker runs after this returns. Harmless when it has ended."""
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """SIGSTOP; when this returns no thread of the worker runs until `resume`."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT after `suspend`."""
        self._process.send_signal(signal.SIGCONT)
