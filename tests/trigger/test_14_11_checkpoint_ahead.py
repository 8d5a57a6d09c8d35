"""A checkpoint that a clock ten years ahead has written is told: what changes now comes before it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from holdfast import FetchError, SqlAlchemySource
from tests.components.processes import wait_until

COLUMNS = {
    "postgres_url": ("timestamptz NOT NULL DEFAULT now()", "timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')"),
    "mariadb_url": ("timestamp(6) NOT NULL DEFAULT now(6)", "datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))"),
    "sqlite_url": ("DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP",),
}
CASES = [(url, column) for url, columns in COLUMNS.items() for column in columns]
MARKS = {"postgres_url": [pytest.mark.component("postgres18")], "mariadb_url": [pytest.mark.component("mariadb")]}


@pytest.mark.parametrize(("url", "column"), [pytest.param(*case, marks=MARKS.get(case[0], [])) for case in CASES])
def test_14_11_a_checkpoint_in_the_future_is_told(url: str, column: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(url)
    engine = create_engine(make_url(found))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE things (id integer PRIMARY KEY, updated_at {column})"))
        connection.execute(text("INSERT INTO things (id) VALUES (1)"))
    engine.dispose()
    source = SqlAlchemySource(url=found, table="things", cursor_column="updated_at", pk_columns=["id"])
    moment: Any = datetime(2036, 11, 18, 12, tzinfo=UTC)
    if "timestamptz" not in column:
        moment = moment.replace(tzinfo=None)
    ahead = {"cursor": source.cursor_from_text(str(moment), ["1"]).to_json()}

    def told() -> str:
        """Return what is said of it; MariaDB's first bound is not known at once."""
        try:
            return "" if not source.fetch_changes(ahead, 10).records else "a row was delivered"
        except FetchError as error:
            return str(error)

    said = wait_until(told, "the checkpoint to be refused")
    assert said.startswith("The checkpoint of 'things' is at 2036-11-18")
    assert "reset-to-cursor" in said
    just_now = {
        "cursor": source.cursor_from_text(str(datetime.now(UTC).replace(tzinfo=moment.tzinfo)), ["1"]).to_json()
    }
    assert not source.fetch_changes(just_now, 10).records
