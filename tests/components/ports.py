"""Free loopback ports that stay free while a server restarts.

They are taken below the range from which the kernel serves outgoing connections: otherwise a client could
be given the port of a server that is down for a moment.
"""

import contextlib
import random
import socket

HOST = "127.0.0.1"
FIRST, LAST = 20_000, 32_000
ATTEMPTS = 1_000


def free_ports(count: int) -> list[int]:
    """Return `count` different ports nobody listens on."""
    with contextlib.ExitStack() as held:
        return [_bind_one(held) for _ in range(count)]


def free_port() -> int:
    """Return one port nobody listens on."""
    return free_ports(1)[0]


def _bind_one(held: contextlib.ExitStack) -> int:
    chooser = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = chooser.randrange(FIRST, LAST)
        candidate = held.enter_context(socket.socket())
        try:
            candidate.bind((HOST, port))
        except OSError:
            continue
        return port
    raise RuntimeError(f"no free port between {FIRST} and {LAST} in {ATTEMPTS} attempts")
