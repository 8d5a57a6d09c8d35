"""Rows as objects: Pydantic models and dataclasses, read by ``input`` and ``trigger``, written by ``output``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Optional, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast import DbBindings, DbOut, HandlerError, ModelChange, RowChange, SerializationError
from holdfast.decorator.models import to_model
from tests.binding.databases import Database
from tests.decorator.polling import make_orders, place, polling

db = DbBindings()
T = TypeVar("T")


class Person(BaseModel):
    """A Pydantic model."""

    model_config = ConfigDict(frozen=True)
    id: int
    name: str
    age: int | None = Field(default=None, ge=0)


@dataclass(frozen=True)
class Employee:
    """A dataclass."""

    id: int
    name: str
    age: int | None = None


MODELS = pytest.mark.parametrize("model", [Person, Employee], ids=["pydantic", "dataclass"])


@pytest.fixture
def people(database: Database) -> Database:
    database.execute("CREATE TABLE people (id integer PRIMARY KEY, name varchar(20), age integer)")
    database.execute("INSERT INTO people VALUES (1, 'Ada', 36), (2, 'Grace', NULL)")
    return database


@MODELS
def test_input_gives_objects(people: Database, model: Any) -> None:
    target: dict[str, Any] = {"url": people.url, "model": model, "engine_provider": people.provider}

    @db.input("person", table="people", pk=lambda number: {"id": number}, **target)
    def one(number: int, person: Any) -> Any:
        return person

    @db.input("found", query="SELECT * FROM people ORDER BY id", **target)
    async def many(found: Any) -> Any:
        return found

    ada, grace = model(id=1, name="Ada", age=36), model(id=2, name="Grace", age=None)
    assert one(1) == ada
    assert isinstance(one(1), model)
    assert one(99) is None
    assert asyncio.run(many()) == [ada, grace]


def test_columns_a_dataclass_has_no_field_for_are_left_out(people: Database) -> None:
    @dataclass
    class Name:
        name: str
        initial: str = field(init=False)

        def __post_init__(self) -> None:
            self.initial = self.name[0]

    @db.input("found", url=people.url, table="people", pk={"id": 1}, model=Name, engine_provider=people.provider)
    def handler(found: Any) -> Any:
        return found

    assert handler() == Name("Ada")
    assert handler().initial == "A"


def test_a_row_that_does_not_fit_names_the_field_and_not_the_value(sqlite: Database) -> None:
    sqlite.execute("CREATE TABLE people (id integer PRIMARY KEY, name text, age integer)")
    sqlite.execute("INSERT INTO people VALUES (1, NULL, -5)")

    @dataclass
    class Needy:
        id: int
        nickname: str

    def reading(model: Any) -> Any:
        @db.input("found", url=sqlite.url, table="people", pk={"id": 1}, model=model, engine_provider=sqlite.provider)
        def handler(found: Any) -> None:
            pytest.fail("must not be called")

        return handler

    with pytest.raises(SerializationError, match=r"^A row does not fit Person: name: .*; age: .*\.$") as caught:
        reading(Person)()
    assert "-5" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValidationError)
    with pytest.raises(SerializationError, match=r"A row does not fit Needy: .*nickname"):
        reading(Needy)()


@MODELS
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_output_takes_objects(people: Database, model: Any, is_async: bool) -> None:
    output = db.output(
        "out",
        url=people.url,
        table="people",
        action="upsert",
        conflict_columns=["id"],
        engine_provider=people.provider,
    )
    rows = [model(id=1, name="Countess", age=37), model(id=3, name="Edsger")]

    @output
    def plain(out: DbOut) -> None:
        out.set(rows)
        out.set(rows[0])

    @output
    async def awaiting(out: Any) -> None:
        await out.set(rows)
        await out.set(rows[0])

    asyncio.run(awaiting()) if is_async else plain()
    assert people.rows("SELECT id, name, age FROM people ORDER BY id") == [
        (1, "Countess", 37),
        (2, "Grace", None),
        (3, "Edsger", None),
    ]


class Color(Enum):
    """What is stored is the value, not the name."""

    RED = "r"


@dataclass
class Size:
    """An object within an object."""

    width: int


class Tile(BaseModel):
    """A model with more than plain values."""

    id: int
    color: Color
    size: Size


@dataclass
class TileRow:
    """The same as a dataclass."""

    id: int
    color: Color
    size: Size


@pytest.mark.parametrize("model", [Tile, TileRow], ids=["pydantic", "dataclass"])
def test_enum_members_and_inner_objects_are_stored_as_what_they_stand_for(postgres: Database, model: Any) -> None:
    postgres.execute("CREATE TABLE tiles (id integer PRIMARY KEY, color text, size jsonb)")

    @db.output("out", url=postgres.url, table="tiles", engine_provider=postgres.provider)
    def write(out: DbOut) -> None:
        out.set([model(id=1, color=Color.RED, size=Size(3)), model(id=2, color=Color.RED, size=Size(4))])

    write()
    assert postgres.rows("SELECT id, color, size FROM tiles ORDER BY id") == [
        (1, "r", {"width": 3}),
        (2, "r", {"width": 4}),
    ]


@dataclass
class Paint:
    """An enum member alone, for databases without JSON."""

    id: int
    color: Color


def test_an_enum_member_is_stored_alike_everywhere(database: Database) -> None:
    database.execute("CREATE TABLE paints (id integer PRIMARY KEY, color varchar(10))")

    @db.output("out", url=database.url, table="paints", engine_provider=database.provider)
    def write(out: DbOut) -> None:
        out.set(Paint(1, Color.RED))

    write()
    assert database.rows("SELECT color FROM paints") == [("r",)]


class Order(BaseModel):
    """A model of what is polled."""

    id: int
    status: str


@dataclass
class OrderLine:
    """The same as a dataclass."""

    id: int
    status: str


@pytest.mark.parametrize("model", [Order, OrderLine], ids=["pydantic", "dataclass"])
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_trigger_gives_each_event_its_row(database: Database, model: Any, is_async: bool) -> None:
    make_orders(database)
    seen: list[ModelChange] = []

    def plain(timer: Any, events: list[ModelChange]) -> None:
        seen.extend(events)

    async def awaiting(timer: Any, events: list[ModelChange]) -> None:
        seen.extend(events)

    trigger = db.trigger(arg_name="events", name="ship", model=model, **polling(database))
    decorated: Any = trigger(awaiting if is_async else plain)
    place(database, 1, 2)
    asyncio.run(decorated("tick")) if is_async else decorated("tick")
    assert [event.row for event in seen] == [model(id=1, status="new"), model(id=2, status="new")]
    assert all(isinstance(event, RowChange) for event in seen)
    assert [event.pk for event in seen] == [{"id": 1}, {"id": 2}]
    assert [event.after for event in seen] == [{"id": 1, "status": "new"}, {"id": 2, "status": "new"}]
    assert len({event.event_id for event in seen}) == 2
    assert {event.op for event in seen} == {"upsert"}


def test_a_change_that_does_not_fit_is_not_committed(sqlite: Database) -> None:
    make_orders(sqlite)
    seen: list[Any] = []

    class Numbered(BaseModel):
        id: int
        status: Decimal

    @db.trigger(arg_name="events", model=Numbered, **polling(sqlite))
    def ship(events: list[ModelChange]) -> None:
        seen.extend(event.row.status for event in events)

    place(sqlite, 1)
    with pytest.raises((HandlerError, SerializationError), match="does not fit Numbered: status"):
        ship()
    sqlite.execute("UPDATE orders SET status = '12.5'")
    ship()
    assert seen == [Decimal("12.5")]


def test_without_a_model_events_stay_what_they_are(sqlite: Database) -> None:
    make_orders(sqlite)
    seen: list[Any] = []

    @db.trigger(arg_name="events", **polling(sqlite))
    def ship(events: list[RowChange]) -> None:
        seen.extend(events)

    place(sqlite, 1)
    ship()
    assert not isinstance(seen[0], ModelChange)


def test_null_does_not_get_into_a_field_that_takes_no_none(people: Database) -> None:
    @dataclass
    class Strict:
        id: int
        age: int

    target: dict[str, Any] = {"url": people.url, "table": "people", "engine_provider": people.provider}

    @db.input("person", pk=lambda number: {"id": number}, model=Strict, **target)
    def read(number: int, person: Strict) -> Strict:
        return person

    assert read(number=1) == Strict(1, 36)
    with pytest.raises(SerializationError, match="does not fit Strict: age: it is NULL, but the field does not take"):
        read(number=2)


@dataclass
class Loose(Generic[T]):
    """Fields that take None, each in its own way."""

    a: Any
    b: object
    c: T
    d: int | None
    e: Annotated[Optional[int], "said of it"]  # noqa: UP045 - the older way of writing it is what is tested
    f: None


def test_a_field_may_take_none_in_many_ways() -> None:
    assert to_model(Loose, dict.fromkeys("abcdef")) == Loose(None, None, None, None, None, None)


def test_annotations_that_cannot_be_read_are_not_judged() -> None:
    @dataclass
    class Odd:
        a: Nowhere  # type: ignore[name-defined]  # noqa: F821 - what the test is about

    assert to_model(Odd, {"a": None}) == Odd(None)


class Aliased(BaseModel):
    """Columns are called otherwise than fields."""

    number: int = Field(alias="id")
    called: str = Field(validation_alias="name")
    age: int | None = None


class ByEither(BaseModel):
    """Fields are called like columns, and have another name elsewhere."""

    model_config = ConfigDict(populate_by_name=True)
    id: int = Field(alias="personNumber")
    name: str


def test_what_was_read_under_an_alias_is_written_under_it(people: Database) -> None:
    target: dict[str, Any] = {"url": people.url, "table": "people", "engine_provider": people.provider}
    upsert: dict[str, Any] = {"action": "upsert", "conflict_columns": ["id"]}

    @db.input("person", pk={"id": 1}, model=Aliased, **target)
    @db.output("out", **target, **upsert)
    def rename(person: Aliased, out: DbOut) -> None:
        person.called = "Augusta"
        out.set(person)

    @db.input("person", pk={"id": 2}, model=ByEither, **target)
    @db.output("out", **target, **upsert)
    def rename_other(person: ByEither, out: DbOut) -> None:
        person.name = "Hopper"
        out.set([person])

    rename()
    rename_other()
    assert people.rows("SELECT id, name FROM people ORDER BY id") == [(1, "Augusta"), (2, "Hopper")]


class Grade(Enum):
    """An enum inside of JSON."""

    SMALL = "s"


@dataclass
class Part:
    """A dataclass inside of JSON."""

    name: str
    size: Grade


@dataclass
class Machine:
    """Has a JSON column."""

    id: int
    parts: list[Part]
    by_name: dict[str, Part]


def test_objects_anywhere_inside_a_json_column_are_stored_as_json(sqlite: Database) -> None:
    sqlite.execute("CREATE TABLE machines (id INTEGER PRIMARY KEY, parts JSON, by_name JSON)")

    @db.output("out", url=sqlite.url, table="machines", engine_provider=sqlite.provider)
    def save(req: Any, out: DbOut) -> None:
        nut = Part("nut", Grade.SMALL)
        out.set(Machine(1, [nut], {"nut": nut}))

    save(req=None)
    nut = {"name": "nut", "size": "s"}
    assert sqlite.reader("machines").get(pk={"id": 1}) == {"id": 1, "parts": [nut], "by_name": {"nut": nut}}
