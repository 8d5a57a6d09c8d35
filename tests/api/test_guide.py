"""docs/http-api.md: its curl lines work, and its tables name what there is."""

from __future__ import annotations

import re
import shlex
from string import Template
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.api import Role
from holdfast.api.app import OPENAPI_PATH
from holdfast.api.errors import CODES
from holdfast.cli.main import app
from tests.api.clients import Client, Office
from tests.api.test_standard import buried_job
from tests.components.processes import REPOSITORY

GUIDE = (REPOSITORY / "docs" / "http-api.md").read_text()
CURLS = [line for line in GUIDE.splitlines() if line.startswith("curl -H")]


def run(client: Client, command: str, names: dict[str, str]) -> Any:
    """Do what curl would do with such a line."""
    words = shlex.split(Template(command).substitute(names))[1:]
    method, body, path, headers = "GET", None, "", {}
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word == "-d":
            body = words.pop(0)
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        else:
            path = word
    return client(method, path, headers=headers, content=body).data


def test_every_curl_line_of_the_guide_works(office: Office) -> None:
    letter, other = buried_job(office), buried_job(office)
    names = {"API": "", "TOKEN": office.tokens[Role.ADMIN], "KEY": letter.row_key, "OTHER": other.row_key}
    if not office.hf.engines.declared:
        office.hf.engine("hmac")(rotate)
    answers = [run(office.nobody, line, names) for line in CURLS]
    listed, shown, retried, resolved, expired, history, engines, sent, *registry, audited = answers
    assert len(listed["items"]) == 2
    assert shown["originalMessage"]
    assert retried["messageId"] == letter.item_id
    assert resolved["resolutionNotes"] == "sent by post"
    assert expired == {"expired": 0}
    assert history["items"] == []
    assert [item["engine"] for item in engines["items"]] == ["hmac"]
    assert (sent["queue"], sent["correlationId"]) == ("hmac-queue", "order-7")
    assert [answer["lockState"] for answer in registry] == ["free", "held", "held", "free", "free"]
    assert registry[-1]["fields"] == {"region": "east"}
    assert [item["details"]["notes"] for item in audited["items"]] == ["sent by post"]


def rotate(context: object, message: object) -> None:
    """Rotate nothing: messages only wait here."""


def test_the_guide_names_every_endpoint_parameter_and_code(small_office: Office) -> None:
    document = small_office.api.openapi()
    told = set(re.findall(r"^\| `(GET|POST|PATCH) (\S+)` \|", GUIDE, re.MULTILINE))
    there = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == there | {("GET", OPENAPI_PATH)}
    listings = GUIDE.partition("## Listings\n")[2].partition("\n## ")[0]
    for path in ("/api/dlq", "/api/history"):
        for parameter in document["paths"][path]["get"]["parameters"]:
            assert parameter["in"] == "header" or f"`{parameter['name']}`" in listings
    below = GUIDE.partition("## Engines\n")[2].partition("\n## Answers")[0]
    for model in ("AskedMessage", "NewRegistry", "Locking", "Unlocking", "RegistryChange", "RegistryDetails"):
        for field in document["components"]["schemas"][model]["properties"]:
            assert f"`{field}`" in below, f"{model}.{field}"
    codes = dict(re.findall(r"^\| (\d{3}) \| `(\w+)`", GUIDE, re.MULTILINE))
    assert codes == {str(status): code.value for status, code in CODES.items()}


@pytest.mark.parametrize("option", sorted(set(re.findall(r"(--[a-z][a-z-]+)", GUIDE))))
def test_the_guide_names_options_that_exist(option: str) -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    assert option in shown
