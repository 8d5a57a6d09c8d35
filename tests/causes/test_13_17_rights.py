"""A role that could not record the end of its work begins none, and is told what to grant."""

from __future__ import annotations

import pytest

from tests.causes.roles import TABLES, Role


def test_13_17_without_rights_on_sequences_no_job_is_run(postgres_role: Role) -> None:
    postgres_role.do(TABLES)
    refusal = postgres_role.refused()
    assert f"The role {postgres_role.name} could not record in " in refusal
    assert "it lacks USAGE on holdfast_history_id_seq. Nothing was begun; run: " in refusal
    assert refusal.endswith(f"GRANT USAGE ON SEQUENCE holdfast_history_id_seq TO {postgres_role.name};")
    postgres_role.granted(refusal)


@pytest.mark.parametrize("missing", ["SELECT", "INSERT"])
def test_13_17_without_a_right_on_the_history_no_job_is_run(role: Role, missing: str) -> None:
    left = {"SELECT": "INSERT, UPDATE", "INSERT": "SELECT, UPDATE"}[missing]
    role.grant_everything_but("holdfast_history", left)
    refusal = role.refused()
    assert f"it lacks {missing} on holdfast_history. " in refusal
    assert refusal.endswith(f"run: GRANT {missing} ON holdfast_history TO {role.name};")
    role.granted(refusal)


def test_13_17_without_the_right_to_take_jobs_from_the_queue_none_is_run(role: Role) -> None:
    role.grant_everything_but("holdfast_jobs", "SELECT, INSERT")
    refusal = role.refused()
    assert refusal.endswith(f"run: GRANT UPDATE, DELETE ON holdfast_jobs TO {role.name};")
    role.granted(refusal)


def test_13_17_a_trigger_and_a_processor_without_rights_stop_alone_and_jobs_run(
    role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    role.do(f"CREATE TABLE orders (id {'bigserial' if role.is_postgres else 'serial'} PRIMARY KEY)")
    role.grant_everything_but("holdfast_state", "SELECT")
    role.do("GRANT SELECT ON orders TO {role}" if role.is_postgres else "GRANT PROCESS ON *.* TO {role}")
    if not role.is_postgres:
        role.do("GRANT SELECT ON orders TO {role}")
    role.app.trigger("orders", cursor="id")(lambda events: None)
    role.app.processor("totals")(lambda messages: None)
    role.greet.enqueue()
    assert role.app.run(handle_signals=False)
    assert role.runs == ["greet"]
    told = [record for record in caplog.records if "does not run until that is mended" in record.getMessage()]
    assert [record.levelname for record in told] == ["ERROR", "ERROR"]
    for record, title in zip(told, ("Trigger 'orders'", "Processor 'totals'"), strict=True):
        assert record.getMessage().startswith(title)
        assert "it lacks INSERT on holdfast_state, UPDATE on holdfast_state. " in record.getMessage()
        assert f"GRANT INSERT, UPDATE ON holdfast_state TO {role.name};" in record.getMessage()
    role.do("GRANT INSERT, UPDATE ON holdfast_state TO {role}")
    assert role.app.faults() == {}
