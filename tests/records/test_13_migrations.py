"""Migrations have the numbers 1, 2, 3 and so on: a gap would be taken for a step that is missing."""

from __future__ import annotations

from holdfast.schema import MIGRATIONS

_RELEASED = ["state documents", "records", "jobs", "outbox", "engine records", "listings", "jobs: order of readiness"]


def test_13_migrations_are_numbered_without_gaps_and_keep_their_numbers() -> None:
    steps = sorted(MIGRATIONS, key=lambda step: step.number)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert [step.name for step in steps[: len(_RELEASED)]] == _RELEASED
