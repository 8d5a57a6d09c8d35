"""What the role must be granted before an engine begins work, so that its end can be recorded and its leases kept."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sqlalchemy.engine import Engine

from ..database.rights import FOR_LEASES, FOR_LEASES_THAT_GO, FOR_RECORDS, require_rights
from ..database.row_security import Rights
from .definition import EngineDefinition


def rights_for(operations: Iterable[EngineDefinition], *, has_queue: bool, has_tables: bool, has_state: bool) -> Rights:
    """Return what one engine needs in the application's database, beside the queue.

    Args:
        operations: the engine's.
        has_queue: whether its messages wait in that database; elsewhere a lease keeps messages about the same apart.
        has_tables: whether its history and dead letters are there.
        has_state: whether leases and the registry are.
    """
    records = FOR_RECORDS if has_tables else {}
    if not has_state:
        return records
    if not has_queue:
        return {**records, **FOR_LEASES_THAT_GO}
    has_leases = any(each.settings.singleton or each.settings.schedule is not None for each in operations)
    return {**records, **FOR_LEASES} if has_leases else records


class RightsOnce:
    """Asks for the rights of each engine until it has them, then never again: for hosts that call for every message."""

    def __init__(self) -> None:
        self._granted: set[str] = set()
        self._lock = threading.Lock()

    def require(self, name: str, database: Engine, wanted: Rights) -> None:
        """Check the rights of an engine.

        Raises:
            ConfigurationError: a right is missing; nothing was begun.
        """
        if name in self._granted:
            return
        with self._lock:
            require_rights(database, wanted)
            self._granted.add(name)
