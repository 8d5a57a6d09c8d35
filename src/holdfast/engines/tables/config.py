"""What a registry says about the unified tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...core.errors import ConfigurationError

_TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}")


@dataclass(frozen=True, slots=True)
class EngineTables:
    """The names of the unified tables, and how long what is settled stays in them.

    Raises:
        ConfigurationError: a name is none for an Azure table, both are the same, or the days are negative.
    """

    dlq_table_name: str = "engineDlq"
    history_table_name: str = "engineHistory"
    retention_days: float = 90

    def __post_init__(self) -> None:
        _check_name(self.dlq_table_name)
        _check_name(self.history_table_name)
        _check_days(self.retention_days)
        if self.dlq_table_name.lower() == self.history_table_name.lower():
            raise ConfigurationError(f"Dead letters and history cannot both be in '{self.dlq_table_name}'.")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _TABLE_NAME.fullmatch(name) or name.lower() == "tables":
        raise ConfigurationError(
            f"{name!r:.80} is no name for an Azure table: use 3 to 63 letters and digits, a letter first."
        )


def _check_days(days: object) -> None:
    if isinstance(days, bool) or not isinstance(days, int | float) or not days >= 0:
        raise ConfigurationError(f"retentionDays must be 0 or more, not {days!r:.80}.")
