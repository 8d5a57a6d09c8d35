"""Issue 13, line 16: the audit is sealed; what was changed, removed or inserted behind a seal is found and named."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, inspect
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError
from holdfast.records import audit
from holdfast.records.database import changing
from holdfast.records.retention import prune_audit
from holdfast.records.schema import MIGRATIONS, audit_table
from holdfast.records.seals import Head, row_digest, seal, verify
from tests.records.samples import count

SAME_EVERYWHERE = "682f771b63e4a3a2c676fa2d012d3ce4336f269bc2dee2a784c1f7fab9625f4a"


def add(engine: Engine, *targets: str) -> None:
    for target in targets:
        with changing(engine) as connection:
            audit.record(connection, "eve", "jobs cancel", target, {"why": "ü"})


def run(engine: Engine, sql: str) -> None:
    with changing(engine) as connection:
        connection.exec_driver_sql(sql)


@pytest.fixture
def sealed(engine: Engine) -> Engine:
    """Rows 1 and 2 under seal 1, row 3 under seal 2."""
    add(engine, "a", "b")
    seal(engine)
    add(engine, "c")
    seal(engine)
    return engine


def test_13_16_seals_are_chained_and_the_head_is_logged(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    assert seal(engine) is None
    add(engine, "a", "b", "c")
    with caplog.at_level(logging.INFO, "holdfast.records"):
        head = seal(engine, batch_size=2)
    assert head is not None
    assert head.number == 2
    assert str(head) in caplog.text
    found = verify(engine, Head.parsed(str(head)))
    assert (found.head, found.seals, found.rows, found.unsealed_rows, found.findings) == (head, 2, 3, 0, [])
    assert [row.seal for row in audit.page(engine).items] == [2, 1, 1]


@pytest.mark.parametrize(
    ("sql", "finding"),
    [
        ("UPDATE holdfast_audit SET actor = 'adam' WHERE id = 2", "row 2 was changed after seal 1"),
        ("UPDATE holdfast_audit SET details = NULL WHERE id = 3", "row 3 was changed after seal 2"),
        ("DELETE FROM holdfast_audit WHERE id = 1", "row 1 was removed after seal 1"),
        ("UPDATE holdfast_audit SET seal = NULL WHERE id = 1", "row 1 was removed after seal 1"),
        ("UPDATE holdfast_audit SET seal = 7 WHERE id = 1", "row 1 is under seal 7, which is not there"),
        ("UPDATE holdfast_audit_seals SET row_count = 9 WHERE number = 1", "seal 1 was changed, or one before it"),
        ("UPDATE holdfast_audit_seals SET row_digests = '{}' WHERE number = 1", "what seal 1 tells of its rows"),
        ("UPDATE holdfast_audit_seals SET row_digests = NULL WHERE number = 1", "the 2 rows of seal 1 were removed"),
        ("DELETE FROM holdfast_audit_seals WHERE number = 1", "seal 1 was removed"),
        (
            "INSERT INTO holdfast_audit (at, actor, action, target, seal)"
            " SELECT at, actor, action, target, seal FROM holdfast_audit WHERE id = 1",
            "row 4 was inserted under seal 1",
        ),
    ],
)
def test_13_16_what_was_done_behind_a_seal_is_named(sealed: Engine, sql: str, finding: str) -> None:
    assert verify(sealed).findings == []
    run(sealed, sql)
    assert finding in " | ".join(verify(sealed).findings)


def test_13_16_a_chain_made_anew_does_not_fit_the_head_kept_elsewhere(sealed: Engine) -> None:
    head = verify(sealed).head
    run(sealed, "DELETE FROM holdfast_audit_seals")
    run(sealed, "UPDATE holdfast_audit SET seal = NULL, actor = 'adam'")
    seal(sealed)
    assert verify(sealed).findings == []
    assert verify(sealed, head).findings == [f"seal 2 is not the one that the head {head} tells of"]


def test_13_16_a_row_that_commits_late_goes_under_the_next_seal(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time: ids are in the order of commits")
    with changing(engine) as late:
        audit.record(late, "eve", "jobs cancel", "late")
        add(engine, "early")
        seal(engine)
        assert verify(engine).findings == []
    assert verify(engine).unsealed_rows == 1
    seal(engine)
    assert [(row.target, row.seal) for row in audit.page(engine).items] == [("early", 1), ("late", 2)]
    assert verify(engine).findings == []


def test_13_16_several_processes_that_seal_at_once_make_one_chain(engine: Engine) -> None:
    add(engine, *map(str, range(12)))

    def sealing(_: int) -> None:
        while verify(engine).unsealed_rows:
            seal(engine, batch_size=2)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(sealing, range(3)))
    found = verify(engine)
    assert (found.rows, found.unsealed_rows, found.findings) == (12, 0, [])


def test_13_16_retention_keeps_the_seals_as_an_anchor(sealed: Engine) -> None:
    head = verify(sealed).head
    add(sealed, "unsealed")
    assert prune_audit(sealed, 0, "anne") == 3
    assert [row.action for row in audit.page(sealed).items] == ["audit prune", "jobs cancel"]
    seal(sealed)
    found = verify(sealed, head)
    assert (found.pruned_seals, found.seals, found.rows, found.findings) == (2, 3, 2, [])
    assert prune_audit(sealed, 0, "anne") == 2
    assert verify(sealed, head).findings == []
    run(sealed, "DELETE FROM holdfast_audit")
    assert "no 'audit prune' tells of it" in verify(sealed).findings[0]


def test_13_16_retention_leaves_what_is_young_or_not_sealed(sealed: Engine) -> None:
    assert prune_audit(sealed, 1, "anne") == 0
    assert count(sealed, "holdfast_audit") == 3


def test_13_16_the_digest_of_a_row_is_the_same_in_every_database(engine: Engine) -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=UTC)
    values = {
        "id": 7,
        "at": at,
        "actor": "eve ",
        "action": "dlq resolve",
        "target": "é/\U0001f980",
        "details": '{"a": "ü"}',
    }
    with changing(engine) as connection:
        connection.execute(insert(audit_table).values(values))
    with engine.connect() as connection:
        [row] = connection.execute(audit_table.select()).all()
    assert row_digest(row._mapping) == SAME_EVERYWHERE


@pytest.mark.parametrize("details", ["'no json'", "'[]'", "'{}'", "'{\"last_seal\": null}'", "NULL"])
def test_13_16_a_prune_that_does_not_tell_what_went_excuses_nothing(sealed: Engine, details: str) -> None:
    run(sealed, f"UPDATE holdfast_audit SET action = 'audit prune', details = {details}")
    run(sealed, "UPDATE holdfast_audit_seals SET row_digests = '[7]'")
    findings = " | ".join(verify(sealed).findings)
    assert "what seal 1 tells of its rows was changed" in findings
    assert "row 1 was inserted under seal 1" in findings
    assert len(audit.page(sealed).items) == 3


def test_13_16_seals_come_to_tables_of_the_version_before(engine: Engine) -> None:
    [step] = [step for step in MIGRATIONS if step.name == "audit: seals"]
    on_table = " ON holdfast_audit" if engine.dialect.name in ("mysql", "mariadb") else ""
    run(engine, f"DROP INDEX holdfast_audit_seal{on_table}")
    run(engine, "ALTER TABLE holdfast_audit DROP COLUMN seal")
    run(engine, "DROP TABLE holdfast_audit_seals")
    add(engine, "by the version before")
    for _ in range(2):  # half of it may have been done by a process that died
        with changing(engine) as connection:
            step.apply(connection)
    add(engine, "by the version before, later")
    assert "holdfast_audit_seal" in {index["name"] for index in inspect(engine).get_indexes("holdfast_audit")}
    seal(engine)
    found = verify(engine)
    assert (found.seals, found.rows, found.unsealed_rows, found.findings) == (1, 2, 0, [])


def test_13_16_a_head_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Give NUMBER:DIGEST"):
        Head.parsed("7:abc")
