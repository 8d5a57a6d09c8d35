"""The names of the tables are checked before they are used."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.engines.tables.config import EngineTables


def test_what_is_left_out_is_the_standards() -> None:
    assert EngineTables() == EngineTables("engineDlq", "engineHistory", 90)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"dlq_table_name": "engine-dlq"}, "no name for an Azure table"),
        ({"history_table_name": "ab"}, "no name for an Azure table"),
        ({"history_table_name": None}, "no name for an Azure table"),
        ({"history_table_name": "tables"}, "no name for an Azure table"),
        ({"dlq_table_name": "same", "history_table_name": "Same"}, "cannot both be"),
        ({"retention_days": -1}, "0 or more"),
        ({"retention_days": "90"}, "0 or more"),
        ({"retention_days": True}, "0 or more"),
        ({"retention_days": float("nan")}, "0 or more"),
    ],
)
def test_what_cannot_be_used_is_refused(config: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        EngineTables(**config)
