"""A worker process that stays inside its handler: ``python -m tests.runtime.frozen_worker WORKLOAD URL LEASE_SECONDS``.

It writes an effect, says so, and waits until it notices that its lease was lost; then it writes another and returns, as
a process does that was frozen and goes on.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from sqlalchemy import create_engine

from holdfast import EngineProvider
from tests.runtime.stage import Stage
from tests.runtime.workloads import WORKLOADS, failure_of

ITEM = "frozen"
FROZEN_STEPS = ("frozen-before", "frozen-after")


def main(workload: str, url: str, lease_seconds: str) -> None:
    stage = Stage(WORKLOADS[workload](url, EngineProvider(), lease_seconds=float(lease_seconds)), create_engine(url))

    def act(item: str, context: Any) -> None:
        scene = stage.scene(item, context)
        scene.write(FROZEN_STEPS[0])
        say("inside")
        context.lease_lost.wait(60)
        try:
            scene.write(FROZEN_STEPS[1])
        finally:
            say("leaving")

    say(f"ended with {failure_of(lambda: stage.workload.try_once(ITEM, act))}")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
