"""examples/functions-api: the API in Azure Functions, inside the real worker library and through its ASGI adapter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import azure.functions as func
import pytest

from holdfast import EngineProvider, Holdfast
from holdfast.api import ApiToken, Role, new_token
from tests.components import availability, functions
from tests.components.processes import REPOSITORY
from tests.functions.calls import Call, Response
from tests.functions.hosts import RuntimeHost, _imported, invoke
from tests.records.samples import add_letter

EXAMPLE = REPOSITORY / "examples" / "functions-api"
KEY = "a secret that is shared"
Ask = Callable[..., Response]


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    provider = EngineProvider()
    application = Holdfast(sqlite_url, engine_provider=provider)
    application.migrate()
    yield application
    provider.dispose_all()


def request_of(method: str, path: str, headers: Mapping[str, str], body: object) -> dict[str, Any]:
    """A request as the host hands it over: the address whole, the query in it."""
    return {
        "method": method,
        "url": f"https://shop.example/api/{path}",
        "headers": {"content-type": "application/json", **headers},
        "body": "" if body is None else json.dumps(body),
    }


def in_the_worker(settings: Mapping[str, str]) -> Iterator[Ask]:
    availability.need("functions")
    if "fastapi==" not in functions.INSTALLED.read_text():
        pytest.skip("requirements/functions313.lock has no FastAPI yet: run make lock, then make components")
    with RuntimeHost(EXAMPLE, settings) as host:
        [(name, seen)] = host.functions.items()
        [trigger] = [binding for binding in seen.bindings if binding["type"] == "httpTrigger"]
        assert (trigger["route"], trigger["authLevel"]) == ("/{*route}", "ANONYMOUS")
        assert {"GET", "POST", "PATCH"} <= {str(method) for method in trigger["methods"]}

        def ask(method: str, path: str, headers: Mapping[str, str], body: object = None) -> Response:
            request = request_of(method, path, headers, body)
            data = {"http": {**request, "query": {}, "params": {}}}
            outcome = invoke(host, name, Call("httpTrigger", "req", data))
            assert outcome.succeeded, outcome.error
            assert outcome.response is not None
            return outcome.response

        yield ask


def through_the_adapter(settings: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    module = _imported(EXAMPLE / "function_app.py")

    def ask(method: str, path: str, headers: Mapping[str, str], body: object = None) -> Response:
        request = request_of(method, path, headers, body)
        made = func.HttpRequest(
            method=request["method"], url=request["url"], headers=request["headers"], body=request["body"].encode()
        )
        answer = asyncio.run(module.app.middleware.handle_async(made))
        told = {name.lower(): value for name, value in answer.headers.items()}
        return Response(answer.status_code, answer.get_body().decode(), told)

    yield ask
    module.hf.database.dispose()


@pytest.fixture(scope="module")
def annes() -> tuple[str, ApiToken]:
    """A token with the role operate."""
    return new_token("anne", [Role.OPERATE])


@pytest.fixture(params=["worker", "adapter"])
def ask(
    request: pytest.FixtureRequest, annes: tuple[str, ApiToken], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ask]:
    """Asks the function app."""
    _, kept = annes
    sample = json.loads((EXAMPLE / "local.settings.sample.json").read_text())["Values"]
    ours = {"DB_URL": sqlite_url, "HOLDFAST_API_TOKENS": f"# people\n{kept.line}", "HOLDFAST_CONTINUATION_KEY": KEY}
    assert ours.keys() <= sample.keys()
    settings = sample | ours
    yield from in_the_worker(settings) if request.param == "worker" else through_the_adapter(settings, monkeypatch)


def test_the_api_answers_inside_a_function_app(hf: Holdfast, ask: Ask, annes: tuple[str, ApiToken]) -> None:
    anne = {"Authorization": f"Bearer {annes[0]}", "X-Correlation-Id": "c-9"}
    letters = [add_letter(hf.database, item=f"ü {number}") for number in range(2)]
    first = ask("GET", "dlq?limit=1&status=Pending&code=function-key", anne)
    assert (first.status, first.headers["x-correlation-id"]) == (200, "c-9")
    token = first.body["data"]["continuationToken"]
    second = ask("GET", f"dlq?limit=1&status=Pending&continuationToken={token}", anne)
    listed = [answer.body["data"]["items"][0]["rowKey"] for answer in (first, second)]
    assert sorted(listed) == sorted(letter.row_key for letter in letters)
    path = f"dlq/hmac/{listed[0].replace('ü', '%C3%BC').replace(' ', '%20')}"
    settled = ask("PATCH", path, anne, {"status": "Resolved", "resolutionNotes": "by hand"})
    assert (settled.status, settled.body["data"]["resolvedBy"]) == (200, "anne")
    assert ask("POST", f"{path}/retry", anne).status == 409
    assert ask("GET", "dlq?limit=0", anne).body["error"]["target"] == "limit"
    assert ask("GET", "nowhere", anne).body["error"]["code"] == "RESOURCE_NOT_FOUND"
    assert ask("GET", "openapi.json", anne).body["openapi"].startswith("3.")
    refused = ask("GET", "dlq", {})
    assert (refused.status, refused.body["error"]["code"]) == (401, "UNAUTHORIZED")


def test_the_files_of_the_app_fit_together() -> None:
    host = json.loads((EXAMPLE / "host.json").read_text())
    assert host["extensions"]["http"]["routePrefix"] == "api"  # with which the paths of the API begin
    assert (EXAMPLE / "requirements.txt").read_text().splitlines() == [
        "azure-functions",
        "holdfast[azure,postgres,server]",
    ]
    assert (EXAMPLE / "README.md").read_text().startswith("# ")
