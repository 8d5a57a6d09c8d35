"""What the demo shows while it runs: a live bar on a terminal, a line a second elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ...core.clock import SystemClock

_LINE_EVERY_SECONDS = 1.0


class Screen:
    """Tells what happens, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = SystemClock()
        self._started = self._clock.monotonic()
        self._last_line = self._started
        self._bar = Progress(
            TextColumn("        shipped"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("shipped", total=None)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, event: str) -> None:
        """Tell an event."""
        self._console.print(f"{self._clock.monotonic() - self._started:6.1f} s  {event}")

    def show(self, *, shipped: int, accepted: int) -> None:
        """Show how far it is."""
        self._bar.update(self._task, completed=shipped, total=accepted)
        now = self._clock.monotonic()
        if not self._console.is_terminal and now - self._last_line >= _LINE_EVERY_SECONDS:
            self._last_line = now
            self.say(f"shipped {shipped} of {accepted}")
