"""CPU seconds of worker and server for the same jobs, with this checkout and with an earlier commit, in turns."""

import os
import statistics
from collections.abc import Callable
from pathlib import Path

from bench.earlier import COMMIT, MISSING, NOW, Turn, earlier_source, take_turn
from bench.report import Section, Target
from bench.scale import Scale
from tests.components.postgres import PostgresServer

_TICKS = os.sysconf("SC_CLK_TCK")
_TITLE = f"CPU seconds against {COMMIT}"
_UNIT = 100_000  # jobs
_MOST = {"no-op": 1.05, "context.transaction": 1.25}
_PARTS: dict[str, Callable[[Turn], float]] = {
    "worker": lambda turn: turn.worker_seconds,
    "server": lambda turn: turn.gauged,
    "both": lambda turn: turn.worker_seconds + turn.gauged,
}


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Take turns at each kind of job, and compare the medians of what worker and server spent together."""
    turns, sizes = (7, (40_000, 10_000)) if scale.enforces_targets else (1, (200, 100))
    with earlier_source() as earlier:
        if earlier is None:
            return Section(_TITLE, [f"skipped: {MISSING}"], {})
        found = {kind: _in_turns(server, earlier, kind, jobs, turns) for kind, jobs in zip(_MOST, sizes, strict=True)}
    lines = [f"medians of {turns} turns, for {_UNIT:,} jobs (measured over {sizes[0]:,} and {sizes[1]:,})"]
    for kind, medians in found.items():
        lines.append(f"{kind:<24}{'before':>8}{'after':>10}")
        lines += [f"  {part:<20}{before:>10.2f}{after:>10.2f}" for part, (before, after) in medians.items()]
    targets = [
        Target(f"CPU seconds of jobs, {kind}, against {COMMIT}", medians["both"][1] / medians["both"][0], at_most=most)
        for (kind, medians), most in zip(found.items(), _MOST.values(), strict=True)
    ]
    return Section(_TITLE, lines, found, targets)


def _in_turns(
    server: PostgresServer, earlier: Path, kind: str, jobs: int, turns: int
) -> dict[str, tuple[float, float]]:
    """Return for each part what the earlier commit took, and what this checkout takes."""
    taken: dict[Path, list[Turn]] = {earlier: [], NOW: []}
    for number in range(turns):
        for source in (earlier, NOW) if number % 2 == 0 else (NOW, earlier):
            taken[source].append(take_turn(server, source, kind, jobs, lambda: _server_seconds(server)))
    return {
        part: (_median(taken[earlier], of) * _UNIT / jobs, _median(taken[NOW], of) * _UNIT / jobs)
        for part, of in _PARTS.items()
    }


def _median(turns: list[Turn], of: Callable[[Turn], float]) -> float:
    return statistics.median(map(of, turns))


def _server_seconds(server: PostgresServer) -> float:
    """Return the CPU time of the server's processes, those that have ended included."""
    root = server.pid
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == root:
            total += sum(map(int, fields[11:15]))
        elif int(fields[1]) == root:
            total += sum(map(int, fields[11:13]))
    return total / _TICKS
