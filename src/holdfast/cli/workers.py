"""``holdfast workers``: who works on jobs and engines now."""

from __future__ import annotations

from ..jobs.overview import LiveWorker
from .options import AppOption, JsonOption
from .output import print_json, print_line, print_table
from .records import app_with_tables, described_fields, shown_moment

_COLUMNS = ("worker", "host", "pid", "runs", "started", "seen")


def workers(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List the live workers of jobs and engines. Who runs triggers and processors is in their own lists.

    A worker that dies is listed for another 100 seconds; one that stops is gone at once. Function apps are not listed:
    their host runs them.
    """
    found = app_with_tables(app).jobs.workers()
    if as_json:
        print_json([described_fields(worker) for worker in found])
    elif found:
        print_table(_COLUMNS, map(_row, found))
    else:
        print_line(
            "No worker of jobs or engines is alive. Start one with 'holdfast run'; who runs triggers and processors is "
            "in 'trigger list' and 'processor list'."
        )


def _row(worker: LiveWorker) -> tuple[str, ...]:
    return (
        worker.id,
        worker.host,
        str(worker.pid),
        ", ".join(_shown(topic, names) for topic, names in sorted(worker.operations.items())) or "nothing",
        shown_moment(worker.started_at),
        shown_moment(worker.seen_at),
    )


def _shown(topic: str, operations: list[str] | None) -> str:
    return f"{topic}: {'anything' if operations is None else ' '.join(operations)}"
