"""Everything that is told of failures, by the place where it is told: logs, metrics, cells, commands and answers."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from hypothesis import strategies as st
from sqlalchemy import inspect, text
from sqlalchemy.engine import Engine

from holdfast import Holdfast
from tests.api.clients import Client, Office
from tests.cli.desk import Desk
from tests.safety.canaries import CONTROL, PERSONAL, SECRETS

Told = dict[str, list[str]]
"""Texts, by the place where they are told."""
secrets = st.from_regex(r"[A-Za-z0-9]{11}[0-9][A-Za-z0-9]{12}", fullmatch=True)
names = st.from_regex(r"[A-Z][a-z]{7}", fullmatch=True)
BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"
STEERING = re.compile(
    "["
    + "".join(
        re.escape(chr(each))
        for each in range(0x3000)
        if unicodedata.category(chr(each)) == "Cc" or unicodedata.bidirectional(chr(each)) in BIDIRECTIONAL
    )
    + MARKS
    + "\u2028\u2029\ufeff\ud800-\udfff]"
)  # controls, marks of direction, ends of lines, a mark of byte order, halves of characters
# Where the role `payload` is needed: nothing of these is shown to `read`.
PAYLOAD_CELLS = {
    "cell holdfast_history.input",
    "cell holdfast_history.output",
    "cell holdfast_history.error",
    "cell holdfast_dead_letters.original_message",
    "cell holdfast_dead_letters.error_message",
    "cell holdfast_jobs.payload",
    "cell holdfast_jobs.last_error",
    "cell history.Error",  # of a table in a storage account
    "cell history.Traceback",
    "cell letters.ErrorMessage",
    "cell letters.Traceback",
}


class Counted:
    """A metrics back end that keeps every name and label."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None:
        self.told.append(f"{name} {dict(labels or {})}")

    observe = set_gauge = increment


class EverythingFormatter(logging.Formatter):
    """Prints every field of a record as JSON, and of its error what tools that report errors send away."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {**vars(record), "exc_info": None, "message": record.getMessage()}
        error = record.exc_info[1] if record.exc_info else None
        return json.dumps({**fields, "error": [*_insides(error)]}, default=str, ensure_ascii=False)


def _insides(error: BaseException | None) -> Iterator[str]:
    """Yield an error, its causes, and the variables of all their frames."""
    while error is not None:
        yield f"{error!r} {vars(error)}"
        yield from (str(frame.tb_frame.f_locals) for frame in _frames(error))
        error = error.__cause__ or error.__context__


def _frames(error: BaseException) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Collect what any handler would print of any logger, tracebacks and all, as lines and as JSON."""
    stream, root = io.StringIO(), logging.getLogger()
    plain, everything = logging.StreamHandler(stream), logging.StreamHandler(stream)
    plain.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    everything.setFormatter(EverythingFormatter())
    level = logging.getLogger("holdfast").level
    for handler in (plain, everything):
        root.addHandler(handler)
    logging.getLogger("holdfast").setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        for handler in (plain, everything):
            root.removeHandler(handler)
        logging.getLogger("holdfast").setLevel(level)


class RaisedError(Exception):
    """What a handler raises."""


def telling(secret: str, name: str) -> str:
    """Return a text with a secret and a name in every form that is known."""
    said = [form.format(secret) for form in SECRETS] + [form.format(name) for form in PERSONAL]
    return f"{name} has no address. {PERSONAL[6].format(name)} {SECRETS[0].format(secret)} {CONTROL} " + "\n".join(said)


@dataclass(frozen=True)
class Canaries:
    """What was raised: a secret, which nobody may see, and a name, which only some may."""

    secret: str
    name: str

    def leaks(self, told: Mapping[str, Sequence[str]]) -> set[str]:
        """Return the places that tell what they may not."""
        return {place for place, texts in told.items() if any(self._is_leak(place, text) for text in texts)}

    def _is_leak(self, place: str, text: str) -> bool:
        is_raw = not place.startswith("cell ") and STEERING.search(text.replace("\n", "")) is not None
        return self.secret in text or is_raw or (not _may_name(place) and self.name in text)


def _may_name(place: str) -> bool:
    """Return whether a place shows the payload to whoever sees it: such cells, tokens with the role, and commands."""
    return place in PAYLOAD_CELLS or place.startswith(("payload: ", "holdfast "))


def told_by_cells(engine: Engine) -> Told:
    """Return the texts in every cell of a database, by column."""
    found: Told = {}
    with engine.connect() as connection:
        for table in inspect(connection).get_table_names():
            for row in connection.execute(text(f"SELECT * FROM {table}")).mappings():
                for column, value in row.items():
                    found.setdefault(f"cell {table}.{column}", []).append(str(value))
    return found


def told_by_api(office: Office, newest: int) -> Told:
    """Return what is answered to every GET request, on the wire, to who may only read and to who may see payloads.

    As many records as ``newest`` are looked at one by one.
    """
    clients = {"read": office.reader, "payload": office.auditor}
    return {
        f"{role}: {path}": said for role, client in clients.items() for path, said in _answers(client, newest).items()
    }


def _answers(client: Client, newest: int) -> Told:
    plain = ("/api/audit", "/api/engines", "/api/registry")
    found = {path: [client.response("GET", path).text] for path in plain}
    for path in ("/api/dlq", "/api/history"):
        found[path] = [client.response("GET", path).text]
        ones = [f"{path}/{item['engine']}/{item['rowKey']}" for item in client.get(path, limit=newest).items]
        found[f"{path}/one"] = [client.response("GET", one).text for one in ones]
    return found


def told_by_commands(desk: Desk, hf: Holdfast, newest: int) -> Told:
    """Return what every command that shows something prints, for people and as JSON."""
    found: Told = {}
    sys.modules["desk_application"].__dict__["hf"] = hf
    for arguments in _showing(hf, newest):
        place = " ".join(["holdfast", *arguments[:2]])
        for command in (arguments, (*arguments, "--json")):
            answer = desk(*command)
            assert answer.code == 0, (command, answer.err)
            found.setdefault(place, []).extend([answer.out, answer.err])
    return found


def _showing(hf: Holdfast, newest: int) -> Iterator[tuple[str, ...]]:
    for group in ("trigger", "processor", "jobs", "dlq", "history", "audit", "engine"):
        yield (group, "list")
    yield from (("jobs", "stats"), ("jobs", "periodic"), ("registry", "show"), ("workers",))
    yield from (("trigger", "show", name) for name in hf.state.pollers())
    letters = hf.dead_letters.page(limit=newest).items
    yield from (("dlq", "show", letter.engine, letter.row_key) for letter in letters)
    yield from (("history", "show", entry.engine, entry.row_key) for entry in hf.history.page(limit=newest).items)
    jobs = [letter.item_id or "" for letter in letters if letter.engine.startswith("jobs:")]
    yield from (("jobs", "show", item.removeprefix("job-")) for item in jobs)
