"""Asking the API: in this process, from any address, or over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import httpx
import uvicorn
from anyio.from_thread import BlockingPortal
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.api import ApiTokens, Role, create_app, new_token
from holdfast.records import audit
from tests.components.processes import wait_until

HOST = "127.0.0.1:8080"


@dataclass(frozen=True)
class Answer:
    """What came back, already checked to be an envelope."""

    status: int
    headers: httpx.Headers
    body: dict[str, Any]

    @classmethod
    def of(cls, response: httpx.Response) -> Answer:
        body = response.json()
        outcome, content = ("Succeeded", "data") if response.is_success else ("Failed", "error")
        assert body["status"] == outcome, body
        assert set(body) == {"status", "correlationId", "timestamp", content}
        assert body["correlationId"] == response.headers["x-correlation-id"]
        assert body["timestamp"].endswith("Z")
        assert datetime.fromisoformat(body["timestamp"]).tzinfo is not None
        if content == "error":
            assert set(body["error"]) == {"code", "message", "target", "details"}
        return cls(response.status_code, response.headers, body)

    @property
    def data(self) -> Any:
        assert self.status in (200, 202), self.body
        return self.body["data"]

    @property
    def items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.data["items"]
        return items

    @property
    def refusal(self) -> tuple[int, str, str | None]:
        """Status, code and target."""
        error = self.body["error"]
        return self.status, error["code"], error["target"]


@dataclass(frozen=True)
class Client:
    """Someone who asks an API in this process, from an address, with or without a token."""

    api: FastAPI
    portal: BlockingPortal
    token: str | None = None
    address: str | None = "127.0.0.1"
    host: str = HOST

    def with_token(self, token: str | None) -> Client:
        return replace(self, token=token)

    def start(self, method: str, path: str, **options: Any) -> Future[Answer]:
        """Send a request without waiting for its answer."""
        return self.portal.start_task_soon(self._answer, method, path, options)

    def __call__(self, method: str, path: str, **options: Any) -> Answer:
        return self.start(method, path, **options).result(60)

    def get(self, path: str, **parameters: Any) -> Answer:
        return self("GET", path, params=parameters)

    def response(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request; return what came back, which need not be an envelope."""
        response: httpx.Response = self.portal.call(self._send, method, path, options)
        return response

    async def _answer(self, method: str, path: str, options: dict[str, Any]) -> Answer:
        return Answer.of(await self._send(method, path, options))

    async def _send(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        address = ("", 0) if self.address is None else (self.address, 50_000)
        transport = httpx.ASGITransport(self.api, client=address)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        headers |= options.pop("headers", {})
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{self.host}") as client:
            return await client.request(method, path, headers=headers, **options)


class Office:
    """An application with tokens of every kind, and people who hold them."""

    def __init__(self, hf: Holdfast, portal: BlockingPortal, **options: Any) -> None:
        self.hf = hf
        made = {role: new_token(f"the-{role}", [role]) for role in Role}
        options = {"tokens": ApiTokens(kept for _, kept in made.values()), "rate_limit": None, **options}
        self.api = create_app(hf, **options)
        self.tokens = {role: token for role, (token, _) in made.items()}
        self.nobody = Client(self.api, portal)
        self.reader = self.nobody.with_token(self.tokens[Role.READ])
        self.auditor = self.nobody.with_token(self.tokens[Role.PAYLOAD])
        self.operator = self.nobody.with_token(self.tokens[Role.OPERATE])
        self.admin = self.nobody.with_token(self.tokens[Role.ADMIN])

    def audited(self) -> list[tuple[str, str, str]]:
        return [(row.actor, row.action, row.target) for row in audit.page(self.hf.database).items]


@contextmanager
def served(api: FastAPI) -> Iterator[str]:
    """Serve an API on a free port of this machine, for real; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(api, log_config=None, lifespan="off", ws="none", proxy_headers=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    with listener:
        thread.start()
        wait_until(lambda: server.started, "the server to listen")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


def every_page(client: Client, path: str, **parameters: Any) -> Iterator[Sequence[dict[str, Any]]]:
    """Yield page after page, to the last."""
    token: str | None = None
    while True:
        page = client.get(path, **parameters, **({} if token is None else {"continuationToken": token}))
        yield page.items
        token = page.data["continuationToken"]
        if token is None:
            return
