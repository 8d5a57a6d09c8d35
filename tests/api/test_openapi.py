"""The OpenAPI document is true: whatever is sent, nothing but what it says comes back, and never a 500."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from holdfast import EngineProvider, Holdfast
from holdfast.api import ApiTokens, Role, create_app, new_token
from holdfast.api.errors import CODES
from holdfast.records.tables import SqlHistoryTable
from tests.api.clients import served
from tests.components.postgres import PostgresServer
from tests.records.samples import add_entry, add_letter

DOCUMENT = create_app(Holdfast("sqlite:///never-opened.db"), is_loopback=True).openapi()
schema = schemathesis.openapi.from_dict(DOCUMENT)
numbers = count(1)
HOLDER = "job-7"
# What the schema cannot say: that a name is reserved, or fits the path, or that something is to be named at all.
UNSAYABLE = {"continuationToken", "fromDate", "toDate", "engine", "enqueuedAtUtc", "fields", "engineTablesConfig"}
ABOUT_REGISTRY = {
    ("get", "/api/registry"),
    ("patch", "/api/registry"),
    ("post", "/api/registry/lock"),
    ("post", "/api/registry/unlock"),
}
bounded = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Server:
    """The API over one database, for real, and things to change in it."""

    def __init__(self, hf: Holdfast, url: str, headers: dict[str, str], session: requests.Session) -> None:
        self.hf = hf
        self.url = url
        self.headers = headers
        self.session = session

    def existing(self, path: str) -> dict[str, str]:
        """Return the name of something that is there."""
        if path.startswith("/api/dlq"):
            letter = add_letter(self.hf.database, item=f"m-{next(numbers)}")
            return {"engine": letter.engine, "rowKey": letter.row_key}
        if path.startswith("/api/engines"):
            return {"engine": "hmac"}
        add_entry(self.hf.database)
        return {"engine": "hmac", "rowKey": SqlHistoryTable(self.hf.database).page().items[0].row_key}


def rotate(context: object, message: object) -> None:
    """Rotate nothing: messages to this engine only wait."""


@contextmanager
def serving(url: str) -> Iterator[Server]:
    provider = EngineProvider()
    hf = Holdfast(url, engine_provider=provider)
    hf.migrate()
    hf.engine("hmac")(rotate)
    hf.registry.init(state={"components": {"api": "1.2"}})
    for number in range(3):
        add_letter(hf.database, item=f"first-{number}")
        add_entry(hf.database)
    token, kept = new_token("schemathesis", [Role.ADMIN])
    with served(create_app(hf, tokens=ApiTokens([kept]), rate_limit=None)) as address, requests.Session() as session:
        yield Server(hf, address, {"Authorization": f"Bearer {token}"}, session)
    provider.dispose_all()


@pytest.fixture(scope="module")
def strict_server(postgres_server: PostgresServer) -> Iterator[Server]:
    """On PostgreSQL, which takes least of what is odd."""
    postgres_server.start()
    with serving(postgres_server.url(postgres_server.create_database())) as server:
        yield server


@pytest.fixture(scope="module")
def quick_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('openapi') / 'test.db'}") as server:
        yield server


def check(case: Any, server: Server, *excluded: Any) -> None:
    """Send a request and check its answer; what no schema can say may be refused although the schema allows it."""
    sent = {*(case.query or {}), *(case.body if isinstance(case.body, dict) else {})}
    if UNSAYABLE & sent or (case.method, case.path) == ("PATCH", "/api/registry"):
        excluded = (*excluded, positive_data_acceptance)
    case.call_and_validate(server.url, server.session, server.headers, excluded_checks=list(excluded))


@schema.parametrize()
@bounded
def test_whatever_is_sent_the_answer_is_one_that_is_documented(case: Any, strict_server: Server) -> None:
    check(case, strict_server)


@schema.include(path_regex="rowKey").parametrize()
@bounded
def test_also_about_things_that_exist(case: Any, quick_server: Server) -> None:
    case.path_parameters = quick_server.existing(case.path)
    check(case, quick_server, negative_data_rejection)  # what was wrong may have been what was replaced


@schema.include(path_regex="messages$").parametrize()
@bounded
def test_also_to_an_engine_that_exists(case: Any, quick_server: Server) -> None:
    case.path_parameters = quick_server.existing(case.path)
    if isinstance(case.body, dict):
        case.body.pop("operation", None)
    check(case, quick_server, negative_data_rejection)


@schema.include(path_regex="registry").parametrize()
@bounded
def test_also_by_the_job_that_has_the_lock(case: Any, quick_server: Server) -> None:
    registry = quick_server.hf.registry
    found = registry.read()
    assert found is not None
    registry.force_unlock(found.lock)
    registry.acquire(HOLDER)
    if isinstance(case.body, dict) and "jobId" in case.body:
        case.body.pop("fencingToken", None)
        case.body["jobId"] = HOLDER
    check(case, quick_server, negative_data_rejection)


def test_the_document_names_the_statuses_that_are_answered_each_with_the_envelope() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            responses, done = operation["responses"], "202" if path.endswith("/messages") else "200"
            assert {done, "401", "403", "429", "500", "503"} <= responses.keys() <= {done, *map(str, CODES)}
            assert ("404" in responses) is ("{" in path or (method, path) in ABOUT_REGISTRY)
            assert ("415" in responses) is (method != "get")
            for status, response in responses.items():
                schema_name = response["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
                assert schema_name.startswith("Succeeded_" if status == done else "Failed")
                assert "X-Correlation-Id" in response["headers"]
            assert operation["security"] == [{"bearer": []}]
    assert not [name for name in DOCUMENT["components"]["schemas"] if "Validation" in name]
