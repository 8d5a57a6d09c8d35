"""A real worker process of the demo, started, killed and stopped by its own process id only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from ...core.private_files import private

_SOURCE_ROOT = Path(__file__).resolve().parents[3]
_APPLICATION = "holdfast.cli.demo.shop:hf"


class Worker:
    """``holdfast run`` in a process of its own. Leaving the context kills what still runs."""

    def __init__(self, url: str, log: Path) -> None:
        self.log = log
        path = os.pathsep.join(filter(None, (str(_SOURCE_ROOT), os.environ.get("PYTHONPATH"))))
        with open(log, "ab", opener=private) as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "run", _APPLICATION, "--migrate", "-v"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env={**os.environ, "HOLDFAST_URL": url, "HOLDFAST_DEMO_LEASH": "1", "PYTHONPATH": path},
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return whether the process is gone."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process at once, as a crash would: no code of it runs after this. Harmless when it has ended."""
        if not self.has_ended:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self, seconds: float) -> int:
        """Ask the process to drain, and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)
