"""What a decorated handler looks like from outside: to the Functions worker, to tools, and to people."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import ConfigurationError, DbBindings, DbConfig, DbOut, DbReader, RowChange, get_db_metadata
from holdfast.decorator.signatures import RESERVED
from tests.binding.databases import Database
from tests.decorator.polling import make_orders, polling

db = DbBindings()
URL = "sqlite:///unused.db"
SECRET = "s3cr3t"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def input_(**settings: Any) -> Decorator:
    return db.input("row", **({"url": URL, "table": "t", "pk": {"id": 1}} | settings))


def output(**settings: Any) -> Decorator:
    return db.output("out", **({"url": URL, "table": "t"} | settings))


def reader(**settings: Any) -> Decorator:
    return db.inject_reader("reader", **({"url": URL} | settings))


def writer(**settings: Any) -> Decorator:
    return db.inject_writer("writer", **({"url": URL, "table": "t"} | settings))


@pytest.fixture
def trigger(sqlite: Database) -> Decorator:
    make_orders(sqlite)
    return db.trigger(arg_name="events", **polling(sqlite))


@pytest.mark.parametrize("decorate", [input_(), output(), reader(), writer()])
def test_name_doc_module_and_the_handler_itself_are_kept(decorate: Decorator) -> None:
    def handler(req: str, row: Any, out: Any, reader: Any, writer: Any) -> int:
        """Say something."""
        return 1

    handler.mark = "kept"  # type: ignore[attr-defined]  # any attribute
    decorated: Any = decorate(handler)
    assert (decorated.__name__, decorated.__qualname__) == (handler.__name__, handler.__qualname__)
    assert (decorated.__doc__, decorated.__module__) == ("Say something.", __name__)
    assert decorated.__wrapped__ is handler
    assert decorated.mark == "kept"
    assert not hasattr(handler, "__signature__"), "the handler itself is untouched"
    assert get_db_metadata(handler) is None


def test_a_triggered_handler_keeps_them_too(trigger: Decorator) -> None:
    def handler(timer: str, events: Any) -> None:
        """Say something."""

    decorated: Any = trigger(handler)
    assert decorated.__wrapped__ is handler
    assert (decorated.__name__, decorated.__doc__, decorated.__module__) == ("handler", "Say something.", __name__)


def test_the_signature_hides_what_is_filled(trigger: Decorator) -> None:
    @trigger
    @reader()
    @output()
    def handler(
        timer: str, events: list[RowChange], reader: DbReader, out: DbOut, context: Any, n: int = 3
    ) -> None: ...

    assert str(inspect.signature(handler)) == "(timer: 'str', n: 'int' = 3) -> 'None'"
    assert set(typing.get_type_hints(handler)) == {"timer", "n", "return"}


@pytest.mark.parametrize("decorate", [input_(), output(), reader(), writer()])
def test_a_context_that_belongs_to_the_host_stays_visible(decorate: Decorator) -> None:
    def handler(req: Any, row: Any, out: Any, reader: Any, writer: Any, context: Any) -> None: ...

    assert "context" in inspect.signature(decorate(handler)).parameters


@pytest.mark.parametrize("decorate", [input_(), output(), reader(), writer()])
def test_the_kind_of_function_is_kept(decorate: Decorator) -> None:
    def plain(row: Any, out: Any, reader: Any, writer: Any) -> None: ...

    async def awaiting(row: Any, out: Any, reader: Any, writer: Any) -> None: ...

    assert not inspect.iscoroutinefunction(decorate(plain))
    assert inspect.iscoroutinefunction(decorate(awaiting))


def test_a_handler_can_be_called_as_its_signature_says() -> None:
    """Filled parameters may stand anywhere, also before those the caller gives by position."""

    @output()
    @reader()
    def usual(out: Any, req: int, reader: Any, limit: int = 10, **more: int) -> Any:
        return req, limit, more, isinstance(out, DbOut), isinstance(reader, DbReader)

    assert str(inspect.signature(usual)) == "(req: 'int', limit: 'int' = 10, **more: 'int') -> 'Any'"
    assert usual(1) == (1, 10, {}, True, True)
    assert usual(1, 2, a=3) == (1, 2, {"a": 3}, True, True)
    assert usual(req=1, limit=2, a=3) == (1, 2, {"a": 3}, True, True)
    with pytest.raises(TypeError, match="too many positional"):
        usual(1, 2, 3)
    with pytest.raises(TypeError, match="multiple values"):
        usual(1, req=1)
    with pytest.raises(TypeError, match="req"):
        usual()
    with pytest.raises(TypeError, match="color"):
        output()(lambda out: None)(color=1)


def test_a_caller_cannot_replace_what_is_filled() -> None:
    @output()
    def handler(out: Any) -> Any:
        return out

    assert isinstance(handler(out="mine"), DbOut)


@pytest.mark.parametrize("decorate", [input_(), output(), reader(), writer()])
def test_a_parameter_the_handler_has_not_is_refused(decorate: Decorator) -> None:
    def handler(req: Any, other: Any) -> None: ...

    def nothing() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'handler' has no parameter '\w+' to fill\. It has: req, other\."):
        decorate(handler)
    with pytest.raises(ConfigurationError, match=r"'nothing' has no parameter '\w+' to fill\. It has: none\."):
        decorate(nothing)


def _positional_only(row: Any, /) -> None: ...
def _any_positions(*row: Any) -> None: ...
def _any_names(**row: Any) -> None: ...


@pytest.mark.parametrize(
    ("handler", "shown"),
    [(_positional_only, "row: 'Any'"), (_any_positions, r"\*row: 'Any'"), (_any_names, r"\*\*row: 'Any'")],
)
def test_a_parameter_that_cannot_be_filled_by_name_is_refused(handler: Callable[..., Any], shown: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{shown}' of '\w+' cannot be filled by name\. Make 'row' a plain"):
        input_()(handler)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_names_of_the_host_cannot_be_filled(name: str, sqlite: Database) -> None:
    def handler(timer: Any, req: Any, context: Any, msg: Any, input: Any, output: Any) -> None: ...

    said = rf"the parameter name '{name}' belongs to the Functions host\. Choose another"
    for decorate in (
        db.input(name, url=URL, table="t", pk={"id": 1}),
        db.output(name, url=URL, table="t"),
        db.inject_reader(name, url=URL),
        db.inject_writer(name, url=URL, table="t"),
        db.trigger(arg_name=name, **polling(sqlite)),
    ):
        with pytest.raises(ConfigurationError, match=said):
            decorate(handler)


def test_metadata_tells_what_was_applied(trigger: Decorator) -> None:
    @trigger
    @reader()
    @output(url="%SHOP_DB%", table="effects")
    def handler(timer: Any, events: Any, reader: Any, out: Any) -> None: ...

    @input_(url="%SHOP_DB%", table="users")
    @writer()
    def other(row: Any, writer: Any) -> None: ...

    @db.input("found", db_config=DbConfig(connection_url=URL), query="SELECT 1")
    def third(found: Any) -> None: ...

    assert get_db_metadata(handler) == {
        "version": 1,
        "bindings": [
            {
                "kind": "output",
                "parameter": "out",
                "connection_setting": "%SHOP_DB%",
                "resource": {"table": "effects"},
            },
            {"kind": "trigger", "parameter": "events"},
        ],
        "injections": [{"kind": "reader", "parameter": "reader"}],
    }
    assert get_db_metadata(other) == {
        "version": 1,
        "bindings": [
            {
                "kind": "input",
                "parameter": "row",
                "connection_setting": "%SHOP_DB%",
                "resource": {"table": "users"},
                "query_kind": "pk",
            }
        ],
        "injections": [{"kind": "writer", "parameter": "writer"}],
    }
    found = get_db_metadata(third)
    assert found is not None
    assert found["bindings"] == [
        {"kind": "input", "parameter": "found", "connection_setting": None, "resource": {}, "query_kind": "text"}
    ]


def test_metadata_of_others_is_kept_and_of_strangers_is_none() -> None:
    def handler(out: Any) -> None: ...

    handler._azure_functions_metadata = {"openapi": {"version": 1}}  # type: ignore[attr-defined]  # another package's
    decorated: Any = output()(handler)
    assert decorated._azure_functions_metadata["openapi"] == {"version": 1}
    assert set(decorated._azure_functions_metadata) == {"openapi", "db"}
    for stranger in (lambda: None, object(), None, 7):
        assert get_db_metadata(stranger) is None


URLS_WITH_SECRETS = [
    f"postgresql://app:{SECRET}@db.example/shop",
    f"postgresql://app@db.example/shop?password={SECRET}",
    f"mssql+pyodbc://app:{SECRET}@db.example/shop?driver=x",
    f"postgresql://app:{SECRET}@db.example:%DB_PORT%/shop",
    f"%DB_SCHEME%://app:{SECRET}@db.example/shop",
]


@pytest.mark.parametrize("url", URLS_WITH_SECRETS)
def test_no_metadata_repr_or_signature_shows_a_password(url: str) -> None:
    @input_(url=url)
    @output(url=url)
    def handler(row: Any, out: Any) -> Any:
        return out

    @reader(url=url)
    @writer(url=url)
    def other(reader: Any, writer: Any) -> None: ...

    given: list[Any] = []

    @output(url=url)
    async def awaiting(out: Any) -> None:
        given.append(out)

    asyncio.run(awaiting())
    output(url=url)(lambda out: given.append(out))()
    shown = [get_db_metadata(handler), get_db_metadata(other), handler, other, inspect.signature(handler), *given]
    shown += [cell.cell_contents for decorated in (handler, other) for cell in decorated.__closure__ or ()]
    assert not [each for each in shown if SECRET in repr(each)]


def test_metadata_of_a_url_in_parts_names_its_variables() -> None:
    @output(url=f"%DB_SCHEME%://app:{SECRET}@%DB_HOST%/shop")
    def handler(out: Any) -> None: ...

    found = get_db_metadata(handler)
    assert found is not None
    assert found["bindings"][0]["connection_setting"] == "%DB_SCHEME%…%DB_HOST%"
