"""One release of an application: ``python -m tests.jobs.operations_app`` has the handlers the environment names."""

from __future__ import annotations

import os

from holdfast import Holdfast

TOPIC = "email"


def main() -> None:
    """Work until told to stop. Each job's result is the process that ran it."""
    hf = Holdfast(os.environ["WORKER_URL"])
    for operation in os.environ["WORKER_OPERATIONS"].split(","):
        hf.job(TOPIC, name=operation)(_who)
    hf.migrate()
    hf.run(concurrency=4, on_started=lambda: print("starting", flush=True))


def _who() -> int:
    return os.getpid()


if __name__ == "__main__":
    main()
