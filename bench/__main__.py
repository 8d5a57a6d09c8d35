"""The command line: runs the chosen parts, prints them, and exits with 1 when a target was missed."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import (
    against,
    bindings,
    catchup,
    claims,
    dead_letters,
    endurance,
    engines,
    growth,
    idle,
    jobs,
    outbox,
    trips,
)
from bench.report import Section, missed, printed, write_json
from bench.scale import FULL, QUICK, Scale
from bench.server import durable_postgres
from tests.components.postgres import PostgresServer

PARTS: dict[str, Callable[[PostgresServer, Scale], Section]] = {
    "trips": trips.measure,
    "growth": growth.measure,
    "catchup": catchup.measure,
    "bindings": bindings.measure,
    "idle": idle.measure,
    "jobs": jobs.measure,
    "claims": claims.measure,
    "engines": engines.measure,
    "against": against.measure,
    "endurance": endurance.measure,
    "outbox": outbox.measure,
    "dead-letters": dead_letters.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks and return the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    scale = QUICK if options.quick else FULL
    chosen = [options.only] if options.only else list(PARTS)
    sections = []
    with durable_postgres() as server:
        for part in chosen:
            sections.append(PARTS[part](server, scale))
            print(printed(sections[-1], scale), flush=True)
    if options.json is not None:
        write_json(options.json, sections, scale)
    failures = missed(sections) if scale.enforces_targets else []
    for line in failures:
        print(f"target missed: {line}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small tables, one round, no targets: shows that it runs")
    parser.add_argument("--only", choices=list(PARTS), help="run one part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
