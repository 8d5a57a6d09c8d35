"""A process that starts an orchestration and waits for it, to be killed meanwhile.

usage: python -m tests.engines.operations.waiting_worker HUB_ADDRESS
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast.durable import DurableTasks
from tests.engines.operations.hubs import deliver, message


def renew(ctx: Any, given: Any) -> None:
    """Stand for the orchestrator of the same name, which another worker hosts."""


def main(address: str) -> None:
    operation = DurableTasks(address).operation("tls", renew)
    print("waiting")
    deliver(operation, message("c-1", payload=7))


if __name__ == "__main__":
    main(sys.argv[1])
