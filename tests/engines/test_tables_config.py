"""What a registry says about the tables is checked before it is used."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.engines.tables.config import EngineTables


def test_what_a_registry_leaves_out_is_the_standards() -> None:
    assert EngineTables.from_registry({}) == EngineTables("engineDlq", "engineHistory", 90)
    config = {"storageAccountName": "x", "dlqTableName": "d42", "historyTableName": "h42", "retentionDays": 7}
    assert EngineTables.from_registry(config) == EngineTables("d42", "h42", 7)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"dlqTableName": "engine-dlq"}, "no name for an Azure table"),
        ({"historyTableName": "ab"}, "no name for an Azure table"),
        ({"historyTableName": None}, "no name for an Azure table"),
        ({"historyTableName": "tables"}, "no name for an Azure table"),
        ({"dlqTableName": "same", "historyTableName": "Same"}, "cannot both be"),
        ({"retentionDays": -1}, "0 or more"),
        ({"retentionDays": "90"}, "0 or more"),
        ({"retentionDays": True}, "0 or more"),
        ({"retentionDays": float("nan")}, "0 or more"),
    ],
)
def test_what_cannot_be_used_is_refused(config: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        EngineTables.from_registry(config)
