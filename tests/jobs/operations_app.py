"""One release of an application: ``python -m tests.jobs.operations_app`` has the handlers the environment names."""

from __future__ import annotations

import os

from holdfast import Holdfast
from holdfast.jobs.outcomes import Snooze

TOPIC = "email"
SNOOZE = "snooze"
LIMITED = "limited"  # a topic, of which one job runs at a time


def main() -> None:
    """Work until told to stop. Each job's result is the process that ran it."""
    hf = Holdfast(os.environ["WORKER_URL"])
    for operation in os.environ["WORKER_OPERATIONS"].split(","):
        hf.job(TOPIC, name=operation)(_snooze if operation == SNOOZE else _who)
    hf.job(LIMITED, name=LIMITED, concurrency=1)(_who)
    hf.migrate()
    hf.run(concurrency=4, on_started=lambda: print("starting", flush=True))


def _who() -> int:
    return os.getpid()


def _snooze() -> None:
    raise Snooze(in_seconds=0.2)


if __name__ == "__main__":
    main()
