"""What every server component shares: start, wait until it answers, stop by process id, restart.

A component says how to prepare its directory, which command runs it and how to see that it answers.
"""

import abc
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.components.ports import free_ports
from tests.components.processes import leashed, start_leashed, wait_until
from tests.components.workspace import private_directory

START_ATTEMPTS = 3
START_SECONDS = 60.0
STOP_SECONDS = 30.0
LOG_TAIL_CHARACTERS = 4_000


class ServerFailedError(Exception):
    """A server ended by itself or could not be prepared; the message carries the end of its log."""


class Server(abc.ABC):
    """A server process on loopback. Starting it again after a stop keeps its ports and its data."""

    name: ClassVar[str]
    port_count: ClassVar[int] = 1
    graceful_signal: ClassVar[signal.Signals] = signal.SIGTERM
    immediate_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self) -> None:
        self.directory = private_directory(self.name)
        self.log = self.directory / "log"
        self.user: str | None = None
        self.ports = free_ports(self.port_count)
        self._process: subprocess.Popen[str] | None = None
        self._has_answered = False

    @abc.abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the command line that runs the server in the foreground."""

    @abc.abstractmethod
    def _answers(self) -> bool:
        """Return whether the server accepts requests."""

    def _prepare(self) -> None:
        """Make what the server needs before its first start. Most need nothing."""
        return

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it and return when it answers. Harmless when it runs."""
        if self.running:
            return self
        if not self._has_answered:
            self._prepare()
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._launch()
                break
            except ServerFailedError:
                if self._has_answered or attempt == START_ATTEMPTS:
                    raise
                self.ports = free_ports(self.port_count)  # somebody may have taken the port meanwhile
        self._has_answered = True
        return self

    def stop(self, *, immediate: bool = True) -> None:
        """Stop it: as in a crash when `immediate`, else the orderly way. Harmless when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(self.immediate_signal if immediate else self.graceful_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, *, immediate: bool = True) -> None:
        """Crash it (or stop it in good order) and start it again on the same ports with the same data."""
        self.stop(immediate=immediate)
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _launch(self) -> None:
        self._process = start_leashed(
            self._command(),
            self.log,
            user=self.user,
            death_signal=self.immediate_signal,
            directory=self.directory,
        )
        try:
            wait_until(self._answers_or_failed, f"{self.name} on port {self.port}", START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def _answers_or_failed(self) -> bool:
        if not self.running:
            raise ServerFailedError(f"{self.name} ended while starting:\n{self._log_tail()}")
        return self._answers()

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]

    def _data_directory(self) -> Path:
        """Return a new directory that belongs to the user the server runs as."""
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(data, entry.pw_uid, entry.pw_gid)
        return data

    def _run(self, command: Sequence[str]) -> None:
        """Run a preparing command as the user the server runs as."""
        done = subprocess.run(
            leashed(command, user=self.user),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.directory,
            check=False,
        )
        if done.returncode != 0:
            raise ServerFailedError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def unprivileged_user(*candidates: str) -> str | None:
    """Return the first of `candidates` that exists when running as root, None when not root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for candidate in candidates:
        if candidate in known:
            return candidate
    raise ServerFailedError(f"none of the users {', '.join(candidates)} exists, and this server refuses root")
