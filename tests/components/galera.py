"""Two nodes of a Galera cluster: MariaDB as Debian packages it, with Debian's galera-4."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import pymysql

from tests.components.mariadb import SETTINGS, UNSYNCED, MariadbServer
from tests.components.ports import HOST
from tests.components.processes import wait_until

LIBRARIES = (Path("/usr/lib/galera/libgalera_smm.so"), Path("/usr/lib/libgalera_smm.so"))
_NOT_HERE = ("--log-bin", "--gtid-strict-mode", "--server-id", "--binlog-row")
_DUPLICATED_ROWS = "--binlog-format=ROW"


class GaleraNode(MariadbServer):
    """One node. It founds the cluster when it is given no other node to join."""

    name: ClassVar[str] = "galera"
    port_count: ClassVar[int] = 4  # clients, the group, incremental and whole state transfers

    def __init__(self, library: Path, founder: "GaleraNode | None" = None) -> None:
        super().__init__()
        self._library = library
        self._founder = founder

    def status(self, variable: str) -> str:
        """Return what the node says of itself."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE %s", [variable])
            row = cursor.fetchone()
        return "" if row is None else str(row[1])

    def set(self, variable: str, value: str) -> None:
        """Set a global variable of the node."""
        self._execute(f"SET GLOBAL {variable} = {value}")

    @property
    def group_address(self) -> str:
        return f"{HOST}:{self.ports[1]}"

    def _prepare(self) -> None:
        if self._founder is None:
            super()._prepare()
        else:
            self._data_directory()  # everything comes from the other node

    def _command(self) -> Sequence[str]:
        group, increments, states = self.ports[1:]
        options = f"gmcast.listen_addr=tcp://{HOST}:{group};ist.recv_addr={HOST}:{increments};gcache.size=16M"
        joins = "" if self._founder is None else self._founder.group_address
        own = [setting for setting in (*SETTINGS, *UNSYNCED) if not setting.startswith(_NOT_HERE)]
        self.settings = (
            *own,
            *(_DUPLICATED_ROWS, "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON", f"--wsrep-provider={self._library}"),
            *(f"--wsrep-cluster-address=gcomm://{joins}", "--wsrep-cluster-name=holdfast", "--wsrep-slave-threads=2"),
            *("--wsrep-sst-method=rsync", f"--wsrep-sst-receive-address={HOST}:{states}"),
            *(f"--wsrep-node-address={self.group_address}", f"--wsrep-provider-options={options}"),
            *(("--wsrep-new-cluster",) if self._founder is None else ()),
        )
        return super()._command()

    def _answers(self) -> bool:
        try:
            return self.status("wsrep_ready") == "ON"
        except pymysql.err.MySQLError:
            return False


class GaleraCluster:
    """Two nodes with the same databases."""

    def __init__(self, library: Path) -> None:
        self.first = GaleraNode(library)
        self.second = GaleraNode(library, self.first)

    @property
    def nodes(self) -> tuple[GaleraNode, GaleraNode]:
        return self.first, self.second

    def __enter__(self) -> Self:
        self.first.start()
        try:
            self.second.start()
            wait_until(lambda: self.first.status("wsrep_cluster_size") == "2", "both nodes to be one cluster")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop both."""
        for node in reversed(self.nodes):
            node.stop()


def find_galera() -> Path | None:
    """Return Debian's library of Galera, None when it is not installed."""
    return next((library for library in LIBRARIES if library.is_file()), None)
