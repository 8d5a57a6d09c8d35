"""A PostgreSQL primary and a standby that follows it, on loopback, and what makes one take over from the other.

A failover here is what an operator's tool does: the old primary dies, or hangs with its sockets open, and the standby
is promoted. The two ports stay the same, whoever is the primary, so one URL that names both always leads to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Self

import psycopg

from tests.components.ports import HOST
from tests.components.postgres import PostgresServer, Standby
from tests.components.processes import wait_until


class PostgresPair:
    """Two servers, of which one is the primary. What it commits is on the other one, too, before it says so."""

    def __init__(self, binaries: Path) -> None:
        self.primary = PostgresServer(binaries)
        self.standby: PostgresServer | None = None
        self._frozen: list[int] = []

    def __enter__(self) -> Self:
        self.primary.start()
        try:
            self._follow(None)
        except BaseException:
            self.primary.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.end_frozen()
        self.primary.stop()
        if self.standby is not None:
            self.standby.stop()

    def url(self, database: str) -> str:
        """Return the URL of a database on whichever of them is the primary."""
        assert self.standby is not None
        first, second = sorted((self.primary.port, self.standby.port))
        hosts = f"host={HOST},{HOST}&port={first},{second}"
        return f"postgresql+psycopg://postgres@/{database}?{hosts}&target_session_attrs=read-write"

    def freeze(self) -> None:
        """Stop every process of the primary where it stands. Its kernel goes on acknowledging what clients send."""
        self._frozen = _stopped(self.primary.pid)

    def kill(self) -> None:
        """End every process of the primary as a power cut would."""
        for pid in _stopped(self.primary.pid):
            os.kill(pid, signal.SIGKILL)
        self.primary.stop()

    def promote(self) -> None:
        """Make the standby the primary, while the former one is as it is."""
        assert self.standby is not None
        with _session(self.standby) as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def rejoin(self) -> None:
        """End the former primary if it still hangs, and have a new copy follow the present one from its port."""
        assert self.standby is not None
        self.end_frozen()
        former, self.primary = self.primary, self.standby
        self._follow(former.port)

    def _follow(self, port: int | None) -> None:
        self.standby = Standby(self.primary, port=port).start()
        with _session(self.standby) as connection:  # else it would wait for one of its own once it is the primary
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        with _session(self.primary) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        wait_until(self._is_synchronous, "the standby to be synchronous")

    def _is_synchronous(self) -> bool:
        with _session(self.primary) as connection:
            found = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall()
        return found == [("sync",)]

    def end_frozen(self) -> None:
        """End the former primary for good, if it hangs."""
        frozen, self._frozen = self._frozen, []
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if frozen:
            self.primary.stop()


def _session(server: PostgresServer) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(server.dsn(), autocommit=True, connect_timeout=10)


def _stopped(postmaster: int) -> list[int]:
    """Stop a server, the process that starts others first; return the ids of all its processes."""
    os.kill(postmaster, signal.SIGSTOP)
    wait_until(lambda: _state(postmaster) == "T", "the postmaster to stand still")
    children = [
        int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _parent(each) == postmaster
    ]
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGSTOP)
    return [postmaster, *children]


def _state(pid: int) -> str:
    return _status(Path(f"/proc/{pid}"))[0]


def _parent(process: Path) -> int | None:
    with contextlib.suppress(OSError):
        return int(_status(process)[1])
    return None


def _status(process: Path) -> list[str]:
    """Return what the kernel tells of a process behind its name, which may have any characters: state, parent, …."""
    return (process / "stat").read_text().rpartition(") ")[2].split()
