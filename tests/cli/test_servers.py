"""The commands on PostgreSQL and MariaDB, where cursors have types and sessions have clocks of their own."""

import json

import pytest
from sqlalchemy import text

from tests.cli.shop import Shop, assert_one_sentence

CREATE = {
    "postgres_url": (
        "CREATE TABLE orders (id integer PRIMARY KEY, item text, "
        "updated_at timestamptz NOT NULL DEFAULT clock_timestamp())",
        "CREATE INDEX idx_orders_updated_at ON orders (updated_at, id)",
    ),
    "mariadb_url": (
        "CREATE TABLE orders (id integer PRIMARY KEY, item text, "
        "updated_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6))",
        "CREATE INDEX idx_orders_updated_at ON orders (updated_at, id)",
    ),
}
OLD = {"postgres_url": "2020-01-01T00:00:0{}Z", "mariadb_url": "2020-01-01T00:00:0{}"}


@pytest.mark.parametrize("server", CREATE)
def test_look_reset_and_undo(shop: Shop, server: str, request: pytest.FixtureRequest) -> None:
    url = str(request.getfixturevalue(server))
    there = {"HOLDFAST_URL": url}
    hf = shop.holdfast(url)
    hf.migrate()
    with hf.database.begin() as connection:
        for statement in CREATE[server]:
            connection.execute(text(statement))
        for number in (1, 2, 3):
            insert = text("INSERT INTO orders (id, item, updated_at) VALUES (:id, 'book', :at)")
            connection.execute(insert, {"id": number, "at": f"2020-01-01 00:00:0{number}"})

    moved = shop.cli(
        *("trigger", "reset-to-cursor", "orders", OLD[server].format(1), "--key", "1", "--yes", "--json"),
        environment=there,
    )
    assert moved.returncode == 0, moved.stderr
    assert json.loads(moved.stdout)["rows_after"] == 2
    runner = hf.runner("orders")
    delivered = 0
    while delivered < 2:
        delivered += runner.tick()

    shown = json.loads(shop.cli("trigger", "show", "orders", "--json", "--count", environment=there).stdout)
    assert shown["cursor"]["tiebreaker"] == {"id": 3}
    assert shown["rows_waiting"] == 0
    assert shown["source"]["capability"]["horizon"] == "server_time"

    lease = hf.state.acquire("orders", ttl_seconds=600)
    refused = shop.cli("trigger", "reset-to-beginning", "orders", "--yes", environment=there)
    assert_one_sentence(refused, 3, str(lease.owner_id))
    lease.release()
    assert shop.cli("trigger", "undo", "orders", "--yes", environment=there).returncode == 0
    listed = json.loads(shop.cli("trigger", "list", "--json", environment=there).stdout)
    assert listed[0]["cursor"] is None
