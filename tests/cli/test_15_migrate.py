"""`holdfast migrate --check` and `--to`."""

from __future__ import annotations

import json

from holdfast.database.migrations import Migration, migrate
from holdfast.schema import MIGRATIONS
from tests.cli.desk import Desk
from tests.cli.shop import EVERY_MIGRATION, Shop, assert_one_sentence

NEWEST = max(step.number for step in MIGRATIONS)


def test_15_check_changes_nothing_and_ends_with_what_a_script_can_use(shop: Shop) -> None:
    missing = shop.cli("migrate", "--check")
    assert_one_sentence(missing, 2, "There is no SQLite file")
    shop.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    missing = shop.cli("migrate", "--check", "--json")
    assert (missing.returncode, json.loads(missing.stdout)["missing"]) == (1, EVERY_MIGRATION)
    assert shop.documents() == []
    assert "Run 'holdfast migrate'; workers that run go on meanwhile." in shop.cli("migrate", "--check").stdout
    assert shop.cli("migrate").returncode == 0
    done = shop.cli("migrate", "--check")
    assert (done.returncode, done.stdout) == (0, "The tables are up to date.\n")


def test_15_check_tells_what_is_newer_and_what_is_too_new(desk: Desk) -> None:
    migrate(desk.hf.database, [Migration(9001, "added", lambda connection: None)])
    assert desk("migrate", "--check", "--json").json == {"up_to_date": True, "missing": [], "newer": ["9001 added"]}
    assert "a newer Holdfast (9001 added), and this one can work on them" in desk("migrate", "--check").out
    migrate(desk.hf.database, [Migration(9002, "used", lambda connection: None, needs=9001)])
    desk.refused(2, "since 9002 used this one cannot work with them", arguments=("migrate", "--check"))


def test_15_a_way_back_for_releases_that_refuse_what_they_do_not_know(desk: Desk) -> None:
    last = EVERY_MIGRATION[-1]
    back = str(max(step.number for step in MIGRATIONS if step.number < NEWEST))
    assert f"Forgotten: {last}. The tables are as they were" in desk("migrate", "--to", back).out
    assert f"No migration after {back} was applied; nothing was changed." in desk("migrate", "--to", back).out
    assert desk("migrate", "--json").json == {"applied": [last], "up_to_date": False}
    desk.refused(2, "There is no migration 8000 to go back to", arguments=("migrate", "--to", "8000"))
    desk.refused(2, "--check or --to, not both", arguments=("migrate", "--to", "3", "--check"))
