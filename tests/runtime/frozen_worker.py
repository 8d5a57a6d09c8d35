"""A worker that stays inside its handlers: ``python -m tests.runtime.frozen_worker WORKLOAD URL LEASE_SECONDS``.

Each writes an effect, says so, and waits until it notices that its lease was lost; then it writes another and ends in
its way, as a process does that was frozen and goes on.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

from sqlalchemy import create_engine

from holdfast import EngineProvider
from tests.runtime.scenes import Ending
from tests.runtime.stage import Stage, end_with
from tests.runtime.workloads import WORKLOADS, Processors, Triggers, failure_of

ITEMS = {f"frozen-{ending}": ending for ending in ("errs", *Ending)}
"""What is worked on, and how its handler ends: all but the first let no error of the database out."""
FROZEN_STEPS = ("frozen-before", "frozen-after")


def main(workload: str, url: str, lease_seconds: str) -> None:
    stage = Stage(WORKLOADS[workload](url, EngineProvider(), lease_seconds=float(lease_seconds)), create_engine(url))

    def act(item: str, context: Any) -> None:
        scene = stage.scene(item, context)
        scene.write(FROZEN_STEPS[0])
        say(f"inside {item}")
        context.lease_lost.wait(60)
        with nullcontext() if ITEMS[item] == "errs" else suppress(Exception):
            scene.write(FROZEN_STEPS[1])
        end_with(Ending.RAISES if ITEMS[item] == Ending.RAISES else Ending.RETURNS)

    def work(item: str) -> None:
        failure = failure_of(lambda: stage.workload.try_once(item, act))
        say(f"ended with {failure}")

    apart = [*ITEMS] if isinstance(stage.workload, Triggers | Processors) else [*ITEMS][:1]  # else one worker has all
    with ThreadPoolExecutor(len(apart)) as threads:
        list(threads.map(work, apart))
    say("all have ended")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
