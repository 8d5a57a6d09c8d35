"""Commands as real processes, forked from one that has imported the command line.

Starting Python and importing everything costs many times what a command does, and hundreds of tests run one.
``python -W error -m tests.cli.forked`` reads a request a line, forks a child that becomes ``python -m holdfast`` in its
own directory and environment, and answers with the exit code when the child has ended.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.cli.commands import COMMANDS, command_named
from holdfast.cli.main import main as run_holdfast
from tests.components.processes import REPOSITORY, leashed, wait_until

PATIENCE_SECONDS = 60.0
_asking = threading.Lock()


def run_forked(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run one command; return how it ended and what it printed."""
    with tempfile.TemporaryDirectory() as printed, _asking:
        out, err = Path(printed) / "out", Path(printed) / "err"
        request = [list(arguments), str(directory), dict(environment), str(out), str(err)]
        code = int(_forking().ask(json.dumps(request)))
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


class _Forking:
    """The process that forks; it ends with this one."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        self._process = subprocess.Popen(
            leashed([sys.executable, "-W", "error", "-m", "tests.cli.forked"]),
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)

    def ask(self, request: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@functools.cache
def _forking() -> _Forking:
    return _Forking()


def _serve() -> None:
    for name in COMMANDS:
        command_named(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(*request)
            run_holdfast()
        print(_ended(child), flush=True)


def _become(arguments: list[str], directory: str, environment: dict[str, str], out: str, err: str) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate((os.devnull, out, err)):
        opened = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it lives as long as the process
    sys.path[0] = directory
    sys.argv = ["holdfast", *arguments]


def _ended(child: int) -> int:
    """Return the exit code of a child; kill one that does not end."""

    def look() -> Any:
        pid, status = os.waitpid(child, os.WNOHANG)
        return (status,) if pid else None

    try:
        found = wait_until(look, "the command to end", PATIENCE_SECONDS)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        found = (os.waitpid(child, 0)[1],)
    return os.waitstatus_to_exitcode(found[0])


if __name__ == "__main__":
    _serve()
