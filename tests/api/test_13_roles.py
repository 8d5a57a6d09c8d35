"""Issue 13, line 12: which role every route needs, and that nobody below `admin` can have records forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from holdfast import Holdfast
from holdfast.api import Role, create_app
from holdfast.api.health import PATHS
from holdfast.engines.registry import EngineTablesConfig, RegistryView
from tests.api.clients import Answer, Office
from tests.api.role_matrix import FOR_EVERYBODY, MATRIX, MAY, TABLES, Row
from tests.records.samples import add_entry, add_letter, days_ago


def routes_of(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        included = getattr(route, "original_router", None)  # some versions of FastAPI keep routers as they are
        if included is not None:
            yield from routes_of(included.routes)
            continue
        assert isinstance(route, Route), f"{route} is no plain route: give it rows of its own"
        yield from ((method, route.path) for method in route.methods or () if method != "HEAD")


def api_of(url: str) -> FastAPI:
    return create_app(Holdfast(url), is_loopback=True)


def test_13_12_every_route_has_a_row_in_the_role_matrix(sqlite_url: str) -> None:
    rows = {(row.method, row.path) for row in MATRIX}
    assert set(routes_of(api_of(sqlite_url).router.routes)) == rows


def test_13_12_nothing_but_health_is_for_everybody(small_office: Office) -> None:
    assert PATHS == FOR_EVERYBODY
    for path in FOR_EVERYBODY:
        for token in (None, "hf_wrong", *small_office.tokens.values()):
            client = small_office.nobody.with_token(token)
            assert [client.response(method, path).status_code for method in ("GET", "HEAD")] == [200, 200]
        assert client.with_token(None).response("POST", path).status_code == 401
        assert small_office.nobody.response("GET", f"{path}/").status_code == 401


@pytest.mark.parametrize("held", Role)
@pytest.mark.parametrize("row", MATRIX, ids=str)
def test_13_12_a_role_lets_through_what_it_is_for_and_no_more(small_office: Office, row: Row, held: Role) -> None:
    client = small_office.nobody.with_token(small_office.tokens[held])
    address = seeded(small_office.hf, row)
    response = client.response(row.method, address, json=row.body)
    if row.role in MAY[held]:
        assert response.is_success, response.text
    else:
        answer = Answer.of(response)
        assert answer.refusal[:2] == (403, "FORBIDDEN")
        assert re.search(r"needs a token with the role '(payload|operate|admin)'", answer.body["error"]["message"])


def seeded(hf: Holdfast, row: Row) -> str:
    """Make everything that a request needs to be carried out; return its address."""
    hf.engine("hmac", queue="hmac-rotation-queue", operation="rotate")(lambda context, message: None)
    letter = add_letter(hf.database)
    add_entry(hf.database)
    if (row.method, row.path) != ("POST", "/api/registry"):
        hf.registry.init()
    if row.path == "/api/registry/unlock" or row.method == "PATCH":
        hf.registry.acquire("job-7")
    [entry] = hf.history.page().items
    return row.address_of(entry.row_key if row.path.startswith("/api/history") else letter.row_key)


@pytest.mark.parametrize("row", MATRIX, ids=str)
def test_13_12_nobody_gets_through_without_an_accepted_token(small_office: Office, row: Row) -> None:
    for token in (None, "hf_wrong"):
        answer = small_office.nobody.with_token(token)(row.method, row.address, json=row.body)
        assert answer.refusal[:2] == (401, "UNAUTHORIZED")


def test_13_12_who_may_operate_cannot_shorten_the_retention(office: Office) -> None:
    office.hf.registry.acquire("job-7")
    before = view_of(office).document
    body = {"jobId": "job-7", "engineTablesConfig": {**TABLES, "retentionDays": 8}}
    assert office.operator("PATCH", "/api/registry", json=body).refusal == (403, "FORBIDDEN", "engineTablesConfig")
    assert view_of(office).document == before
    assert office.admin("PATCH", "/api/registry", json=body).data["engineTablesConfig"]["retentionDays"] == 8


def view_of(office: Office) -> RegistryView:
    view = office.hf.registry.read()
    assert view is not None
    return view


@pytest.mark.parametrize("days", [0, 0.5, 6.99])
def test_13_12_a_retention_below_the_floor_is_refused_with_the_sentence(small_office: Office, days: float) -> None:
    small_office.hf.registry.acquire("job-7")
    body = {"jobId": "job-7", "engineTablesConfig": {**TABLES, "retentionDays": days}}
    answer = small_office.admin("PATCH", "/api/registry", json=body)
    assert answer.refusal == (400, "VALIDATION_ERROR", "engineTablesConfig.retentionDays")
    assert "records are kept for at least 7 days, so that a mistake can be noticed" in answer.body["error"]["message"]


def test_13_12_a_registry_that_says_less_than_the_floor_erases_nothing(office: Office) -> None:
    office.hf.registry.acquire("job-7")
    office.hf.registry.configure_tables("job-7", EngineTablesConfig(retention_days=0))
    letter = add_letter(office.hf.database, last_failure_at=days_ago(1))
    assert office.operator("POST", "/api/dlq/expire", json={"olderThanDays": 0}).data == {"expired": 1}
    assert office.hf.prune().dead_letters == 0
    kept = office.hf.dead_letters.get(letter.engine, letter.row_key)
    assert kept is not None
