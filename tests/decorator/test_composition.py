"""Which decorators go together. Every pair, in both orders."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import ConfigurationError, DbBindings
from tests.binding.databases import Database
from tests.decorator.polling import make_orders, place, polling

db = DbBindings()
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
KINDS = ("trigger", "input", "output", "inject_reader", "inject_writer")
FORBIDDEN = {
    frozenset({"input", "inject_reader"}): "Both read: use input for one lookup, or inject_reader for everything",
    frozenset({"output", "inject_writer"}): "Both write: use output for one write, or inject_writer for everything",
}
PAIRS = list(itertools.permutations(KINDS, 2))
VALID = [pair for pair in PAIRS if frozenset(pair) not in FORBIDDEN]
INVALID = [pair for pair in PAIRS if frozenset(pair) in FORBIDDEN]


def decorators(database: Database) -> dict[str, Decorator]:
    target: dict[str, Any] = {"url": database.url, "engine_provider": database.provider}
    return {
        "trigger": db.trigger(arg_name="events", name="pair", **polling(database)),
        "input": db.input("row", table="orders", pk={"id": 1}, **target),
        "output": db.output("out", table="effects", **target),
        "inject_reader": db.inject_reader("reader", table="orders", **target),
        "inject_writer": db.inject_writer("writer", table="effects", **target),
    }


def test_the_table_of_pairs_is_the_one_the_guide_promises() -> None:
    assert {frozenset(pair) for pair in VALID} >= {
        frozenset(pair)
        for pair in (
            ("trigger", "output"),
            ("trigger", "inject_writer"),
            ("input", "output"),
            ("input", "inject_writer"),
            ("inject_reader", "inject_writer"),
            ("inject_reader", "output"),
        )
    }


@pytest.fixture
def orders(sqlite: Database) -> Database:
    make_orders(sqlite)
    place(sqlite, 1)
    return sqlite


USES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "trigger": ("events", lambda events: [event.after for event in events]),
    "input": ("row", lambda row: row),
    "output": ("out", lambda out: out.set({"order_id": 1, "note": "out"})),
    "inject_reader": ("reader", lambda reader: reader.get(pk={"id": 1})),
    "inject_writer": ("writer", lambda writer: writer.insert(data={"order_id": 1, "note": "writer"})),
}
ORDER = {"id": 1, "status": "new"}
SEEN = {"trigger": [ORDER], "input": ORDER, "output": None, "inject_reader": ORDER, "inject_writer": None}
WRITTEN = {"output": "out", "inject_writer": "writer"}


@pytest.mark.parametrize(("outer", "inner"), VALID)
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_valid_pair_works_in_both_orders(orders: Database, outer: str, inner: str, is_async: bool) -> None:
    seen: dict[str, Any] = {}
    applied = decorators(orders)
    handler: Any = _async_handler(outer, inner, seen) if is_async else _handler(outer, inner, seen)
    decorated: Any = applied[outer](applied[inner](handler))
    result = asyncio.run(decorated(timer="tick")) if is_async else decorated("tick")
    assert seen == {"timer": "tick", outer: SEEN[outer], inner: SEEN[inner]}
    assert result == (None if "trigger" in (outer, inner) else "answer")
    assert orders.rows("SELECT note FROM effects") == [(WRITTEN[kind],) for kind in (outer, inner) if kind in WRITTEN]


def _handler(first: str, second: str, seen: dict[str, Any]) -> Any:
    """Return a handler that has exactly the parameters two decorators fill."""

    def use(timer: str, given: dict[str, Any]) -> str:
        seen["timer"] = timer
        for kind in (first, second):
            name, look = USES[kind]
            seen[kind] = look(given[name])
        return "answer"

    names = USES[first][0], USES[second][0]
    scope = {"use": use}
    source = f"def handler(timer, {names[0]}, {names[1]}): return use(timer, locals())"
    exec(source, scope)
    return scope["handler"]


def _async_handler(first: str, second: str, seen: dict[str, Any]) -> Any:
    async def use(timer: str, given: dict[str, Any]) -> str:
        seen["timer"] = timer
        for kind in (first, second):
            name, look = USES[kind]
            found = look(given[name])
            seen[kind] = await found if asyncio.iscoroutine(found) else found
        return "answer"

    scope = {"use": use}
    source = f"async def handler(timer, {USES[first][0]}, {USES[second][0]}): return await use(timer, locals())"
    exec(source, scope)
    return scope["handler"]


@pytest.mark.parametrize(("outer", "inner"), INVALID)
def test_an_invalid_pair_is_refused_with_what_to_use_instead(orders: Database, outer: str, inner: str) -> None:
    applied = decorators(orders)
    inside = applied[inner](_handler(outer, inner, {}))
    said = (
        rf"Decorators '{outer}' and '{inner}' cannot be combined on 'handler'\. {FORBIDDEN[frozenset({outer, inner})]}"
    )
    with pytest.raises(ConfigurationError, match=said):
        applied[outer](inside)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_decorator_twice_is_refused_with_what_to_use_instead(orders: Database, kind: str) -> None:
    def handler(events: Any, row: Any, out: Any, reader: Any, writer: Any, other: Any) -> None: ...

    once = decorators(orders)[kind](handler)
    said = rf"Decorator '{kind}' is applied twice to 'handler'\. Apply it once; use inject_reader or inject_writer"
    with pytest.raises(ConfigurationError, match=said):
        decorators(orders)[kind](once)


def test_three_at_once(orders: Database) -> None:
    @decorators(orders)["trigger"]
    @decorators(orders)["inject_reader"]
    @decorators(orders)["output"]
    def handler(timer: Any, events: Any, reader: Any, out: Any) -> None:
        out.set([{"order_id": event.pk["id"], "note": reader.get(pk=event.pk)["status"]} for event in events])

    handler("tick")
    assert orders.rows("SELECT order_id, note FROM effects") == [(1, "new")]


def test_a_refused_decorator_leaves_the_handler_as_it_was(orders: Database) -> None:
    applied = decorators(orders)

    def handler(row: Any, reader: Any) -> Any:
        return row

    inside = applied["input"](handler)
    with pytest.raises(ConfigurationError):
        applied["inject_reader"](inside)
    assert inside(reader=None) == ORDER
