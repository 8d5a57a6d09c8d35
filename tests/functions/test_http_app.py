"""The HTTP app: rows come in and go out as JSON, and what the caller did wrong is answered, not raised."""

import uuid
from typing import Any

import pytest

from tests.functions import calls
from tests.functions.calls import Response
from tests.functions.conftest import EXAMPLES, Shop, StartHost
from tests.functions.hosts import Host, invoke

APP = EXAMPLES / "http"


@pytest.fixture
def host(shop: Shop, start_host: StartHost) -> Host:
    shop.create_tables(APP)
    return start_host(APP, shop.settings(APP))


def answered(host: Host, function: str, *arguments: Any, **options: Any) -> Response:
    outcome = invoke(host, function, calls.http(*arguments, **options))
    assert outcome.succeeded, outcome.error
    assert outcome.response is not None
    assert outcome.response.headers["content-type"] == "application/json"
    return outcome.response


def place(host: Host, item: str) -> str:
    response = answered(host, "place_order", "POST", "orders", body={"customer": "ada", "item": item, "quantity": 2})
    assert response.status == 201
    return str(response.body["id"])


def test_an_order_is_placed_read_and_listed(host: Host, shop: Shop) -> None:
    placed = [place(host, "book"), place(host, "lamp")]
    assert [str(row[0]) for row in shop.rows("SELECT id FROM orders ORDER BY placed_at")] == placed
    one = answered(host, "get_order", "GET", f"orders/{placed[0]}", route={"id": placed[0]})
    assert one.status == 200
    assert {**one.body, "placed_at": None} == {
        "id": placed[0],
        "customer": "ada",
        "item": "book",
        "quantity": 2,
        "placed_at": None,
    }
    listed = answered(host, "list_orders", "GET", "orders", query={"customer": "ada"})
    assert [order["item"] for order in listed.body] == ["lamp", "book"]
    assert answered(host, "list_orders", "GET", "orders", query={"customer": "x' OR '1' = '1"}).body == []


def test_the_answer_to_an_order_says_where_it_is(host: Host) -> None:
    response = answered(host, "place_order", "POST", "orders", body={"customer": "ada", "item": "book"})
    assert response.headers["location"] == f"https://shop.example/api/orders/{response.body['id']}"


def test_what_is_not_there_is_404(host: Host) -> None:
    unknown = str(uuid.uuid4())
    response = answered(host, "get_order", "GET", f"orders/{unknown}", route={"id": unknown})
    assert (response.status, unknown in response.body["error"]) == (404, True)


def test_what_is_no_order_is_400_and_nothing_is_written(host: Host, shop: Shop) -> None:
    wrong = ["", "{", "[]", '"text"', {"customer": "ada"}, {"customer": "ada", "item": "book", "quantity": "x"}]
    for body in wrong:
        assert answered(host, "place_order", "POST", "orders", body=body).status == 400
    assert shop.rows("SELECT id FROM orders") == []


def test_a_list_of_nobody_is_400(host: Host) -> None:
    assert answered(host, "list_orders", "GET", "orders").status == 400


def test_a_database_that_refuses_is_a_failed_invocation_without_its_password(host: Host, shop: Shop) -> None:
    shop.execute("DROP TABLE orders")
    unknown = str(uuid.uuid4())
    for function, call in {
        "get_order": calls.http("GET", f"orders/{unknown}", route={"id": unknown}),
        "list_orders": calls.http("GET", "orders", query={"customer": "ada"}),
        "place_order": calls.http("POST", "orders", body={"customer": "ada", "item": "book"}),
    }.items():
        outcome = invoke(host, function, call)
        assert not outcome.succeeded
        assert "orders" in (outcome.error or "")
