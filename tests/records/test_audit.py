"""The audit: written with the change it is about, read newest first."""

from __future__ import annotations

import getpass

import pytest
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError
from holdfast.records import audit
from holdfast.records.database import changing
from tests.records.samples import count


def test_a_row_counts_with_the_change(engine: Engine) -> None:
    with engine.connect() as connection:
        audit.record(connection, "eve", "jobs cancel", "job-7")
        connection.rollback()
    assert count(engine, "holdfast_audit") == 0


def test_rows_come_newest_first_in_pages(engine: Engine) -> None:
    for number in range(3):
        with changing(engine) as connection:
            audit.record(connection, "eve", "jobs cancel", f"job-{number}", {"why": "ü", "number": number})
    first = audit.page(engine, limit=2)
    rest = audit.page(engine, limit=2, after=first.continuation_token)
    assert [row.details for row in (*first.items, *rest.items)] == [{"why": "ü", "number": n} for n in (2, 1, 0)]
    assert rest.continuation_token is None
    assert [row.target for row in audit.page(engine, target="job-1").items] == ["job-1"]
    assert audit.page(engine, action="jobs retry").items == []


def test_long_names_are_cut_and_do_not_stop_the_change(engine: Engine) -> None:
    with changing(engine) as connection:
        audit.record(connection, "e" * 1000, "a" * 1000, "t" * 1000)
    [row] = audit.page(engine).items
    assert (len(row.actor), len(row.action), len(row.target)) == (200, 100, 500)


def test_a_wrong_token_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="not a continuation token of the audit"):
        audit.page(engine, after="x")


def test_a_user_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit.present_user() == getpass.getuser()

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert audit.present_user() == "unknown"
