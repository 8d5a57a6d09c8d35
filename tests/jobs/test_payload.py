"""Arguments come back from a payload as they went in, and what cannot is refused where it is written."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ConfigurationError, PayloadError
from holdfast.jobs.payload import PayloadCodec

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found] # as handlers do with the context's type

OrderId = NewType("OrderId", int)
SpecialOrderId = NewType("SpecialOrderId", OrderId)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Shape(enum.Enum):
    ROUND = (1, 2)
    FLAT = (3, 4)


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    placed_at: datetime
    note: str | None = None
    total: int = field(init=False, default=0)


@dataclass(frozen=True)
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class Cheap(Line):
    discount: int = 0


@dataclass(frozen=True)
class Named:
    first: str = field(kw_only=True, default="")
    last: str


@dataclass
class Guarded:
    age: int

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError("age is negative")


def codec_of(hint: object) -> PayloadCodec:
    def handle(value: Any) -> None: ...

    handle.__annotations__ = {"value": hint}
    return PayloadCodec(handle)


def returned(hint: object, value: object) -> object:
    codec = codec_of(hint)
    return codec.decode(codec.encode({"value": value}))["value"]


def positional_only(context: object, a: int, /) -> None: ...


def any_arguments(*args: int) -> None: ...


def any_names(**kwargs: int) -> None: ...


def late_context(a: int, context: object) -> None: ...


def keyword_context(*, context: object) -> None: ...


def method(self):  # type: ignore[no-untyped-def] # as methods are written
    ...


def generator(a: int) -> Iterator[int]:
    yield a


async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


def unresolved(value: Unknown) -> None: ...


def unsupported(value: bytes) -> None: ...


class TestSignatures:
    def test_the_context_is_no_part_of_the_payload(self) -> None:
        def handle(context: Unknown, order_id: int) -> Unknown: ...

        codec = PayloadCodec(handle)
        assert codec.takes_context
        assert codec.fields == {"order_id"}
        assert codec.signature == "handle(order_id: int)"

    def test_a_handler_need_not_take_anything(self) -> None:
        def handle() -> None: ...

        codec = PayloadCodec(handle)
        assert not codec.takes_context
        assert codec.encode({}) == "{}"
        assert codec.decode("{}") == {}

    def test_keyword_only_parameters_are_arguments(self) -> None:
        def handle(context: object, *, a: int, b: str = "x") -> None: ...

        codec = PayloadCodec(handle)
        assert codec.encode({"a": 1}) == '{"a":1}'
        assert codec.decode('{"a":1}') == {"a": 1}

    def test_a_wrapped_handler_keeps_its_signature(self) -> None:
        def handle(order: Order) -> None: ...

        @functools.wraps(handle)
        def wrapper(*args: Any, **kwargs: Any) -> None: ...

        assert PayloadCodec(wrapper).fields == {"order"}

    def test_a_partial_and_a_callable_object_are_handlers_too(self) -> None:
        def handle(context: object, a: int, b: date) -> None: ...

        class Handler:
            def __call__(self, context: object, b: date) -> None: ...

        assert PayloadCodec(functools.partial(handle, a=1)).fields == {"a", "b"}
        assert PayloadCodec(Handler()).decode('{"b":"2024-02-29"}') == {"b": date(2024, 2, 29)}

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (positional_only, "takes 'a' by position only, but arguments are stored by name"),
            (any_arguments, r"takes '\*args: .*', so its arguments cannot be checked. Name every parameter"),
            (any_names, r"takes '\*\*kwargs: .*', so its arguments cannot be checked. Name every parameter"),
            (late_context, "must have 'context' as its first parameter"),
            (keyword_context, "must have 'context' as its first parameter"),
            (method, "is a method: nobody would fill 'self'. Decorate a function"),
            (generator, r"is a generator \(it has a yield\)"),
            (async_generator, r"is a generator \(it has a yield\)"),
            (unresolved, "cannot be evaluated: name 'Unknown' is not defined. Import what they name at run time"),
            (unsupported, "parameter 'value': bytes cannot be kept in a payload. Use str, int"),
            (7, "is not a function whose signature can be read"),
        ],
    )
    def test_forms_that_cannot_be_jobs(self, function: Callable[..., Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            PayloadCodec(function)

    @pytest.mark.parametrize(
        "hint",
        [
            bytes,
            set[int],
            UUID | str,
            datetime | date,
            Line | Tree,
            Line | dict[str, int],
            list[int] | tuple[str, ...],
            Any | date,
            dict[float, int],
            dict[int | str, int],
            Literal[b"x"],
            Literal["red", Color.RED],
            Literal["a"] | str,
            type[int],
            [int],
            7,
            Callable[[], None],
            "list[Missing]",
        ],
        ids=str,
    )
    def test_annotations_that_could_not_come_back(self, hint: object) -> None:
        with pytest.raises(ConfigurationError, match=r"Job '.*handle'.*(cannot be kept|cannot be evaluated)"):
            codec_of(hint)

    def test_a_dataclass_must_be_made_from_its_fields(self) -> None:
        @dataclass
        class Odd:
            a: int
            b: InitVar[int]

        with pytest.raises(ConfigurationError, match=r"Odd .*made from other things than its fields"):
            codec_of(Odd)

    def test_a_dataclass_whose_annotations_are_unknown(self) -> None:
        @dataclass
        class Odd:
            a: Unknown

        with pytest.raises(ConfigurationError, match="annotations of Odd cannot be evaluated"):
            codec_of(Odd)


TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(timezones=st.none() | OFFSETS)
LINES = st.builds(Line, TEXT, st.decimals(allow_nan=False, allow_infinity=False), st.integers())
ORDERS = st.builds(Order, st.uuids(), st.lists(LINES, max_size=3), MOMENTS, st.none() | TEXT)
TREES = st.recursive(
    st.builds(Tree, TEXT), lambda inner: st.builds(Tree, TEXT, st.lists(inner, max_size=3)), max_leaves=8
)
TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, JSON),
    (object, JSON),
    (str, TEXT),
    (int, st.integers()),
    (float, FLOATS),
    (bool, st.booleans()),
    (None, st.none()),
    (OrderId, st.integers()),
    (SpecialOrderId, st.integers()),
    (Named, st.builds(Named, first=TEXT, last=TEXT)),
    (Annotated[int, "positive"], st.integers()),
    (datetime, MOMENTS),
    (date, st.dates()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Shape, st.sampled_from(Shape)),
    (Right, st.sampled_from([Right.READ, Right.WRITE, Right.READ | Right.WRITE])),
    (Literal["a", 1, True, None, Color.RED], st.sampled_from(["a", 1, True, None, Color.RED])),
    (Line, LINES),
    (Order, ORDERS),
    (Tree, TREES),
]
LIST: Any = list  # indexed with what a test draws
TUPLE: Any = tuple
DICT: Any = dict
SEQUENCE: Any = Sequence
MAPPING: Any = Mapping
GENERICS: list[Callable[[Any, st.SearchStrategy[Any]], tuple[Any, st.SearchStrategy[Any]]]] = [
    lambda hint, values: (LIST[hint], st.lists(values, max_size=4)),
    lambda hint, values: (SEQUENCE[hint], st.lists(values, max_size=4)),
    lambda hint, values: (TUPLE[hint, ...], st.lists(values, max_size=4).map(tuple)),
    lambda hint, values: (TUPLE[int, hint], st.tuples(st.integers(), values)),
    lambda hint, values: (DICT[str, hint], st.dictionaries(TEXT, values, max_size=4)),
    lambda hint, values: (MAPPING[int, hint], st.dictionaries(st.integers(), values, max_size=4)),
    lambda hint, values: (DICT[UUID, hint], st.dictionaries(st.uuids(), values, max_size=4)),
    lambda hint, values: (DICT[date, hint], st.dictionaries(st.dates(), values, max_size=4)),
    lambda hint, values: (hint | None if hint not in (None, Any) else Any, st.none() | values),
]
UNIONS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int | float, st.integers() | FLOATS),
    (float | int | None, st.integers() | FLOATS | st.none()),
    (str | int | bool, TEXT | st.integers() | st.booleans()),
    (date | list[date] | None, st.dates() | st.lists(st.dates(), max_size=3) | st.none()),
    (Decimal | int, st.decimals(allow_nan=False, allow_infinity=False) | st.integers()),
    (Literal["a", "b"] | Literal["c", None] | int | None, st.sampled_from(["a", "b", "c", None, 1])),
    (Line | int, LINES | st.integers()),
    (Color | Level, st.sampled_from(Color) | st.sampled_from(Level)),
]
SIMPLE = st.sampled_from(TYPES)
NESTED = st.one_of(
    SIMPLE,
    st.sampled_from(UNIONS),
    st.tuples(SIMPLE, st.sampled_from(GENERICS)).map(lambda pair: pair[1](*pair[0])),
    st.tuples(SIMPLE, st.sampled_from(GENERICS[:-1]), st.sampled_from(GENERICS)).map(
        lambda triple: triple[2](*triple[1](*triple[0]))
    ),
)


def typed(value: Any) -> Any:
    """Return a value such that equal ones have equal types all the way down."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    return type(value), value


class TestRoundTrip:
    @given(st.data())
    def test_what_goes_in_comes_out(self, data: st.DataObject) -> None:
        hint, values = data.draw(NESTED)
        value = data.draw(values)
        assert typed(returned(hint, value)) == typed(value)

    @given(JSON)
    def test_without_annotations_any_json_value_is_taken(self, value: object) -> None:
        def handle(value):  # type: ignore[no-untyped-def] # without annotations is what this is about
            ...

        codec = PayloadCodec(handle)
        assert typed(codec.decode(codec.encode({"value": value}))["value"]) == typed(value)

    def test_several_arguments_are_compact_json_in_their_order(self) -> None:
        def handle(context: object, who: str, when: date, tags: list[str], rest: dict[str, Any]) -> None: ...

        codec = PayloadCodec(handle)
        arguments = {"who": "Zoë", "when": date(2024, 2, 29), "tags": ["a"], "rest": {"b": [1, None]}}
        payload = codec.encode(arguments)
        assert payload == '{"who":"Zoë","when":"2024-02-29","tags":["a"],"rest":{"b":[1,null]}}'
        assert codec.decode(payload) == arguments

    def test_any_mapping_is_taken_and_left_as_it_was(self) -> None:
        class Frozen(Mapping[str, object]):
            def __getitem__(self, name: str) -> object:
                return {"value": 1}[name]

            def __iter__(self) -> Iterator[str]:
                return iter(["value"])

            def __len__(self) -> int:
                return 1

        assert codec_of(int).encode(Frozen()) == '{"value":1}'
        given_arguments = {"value": date(2024, 1, 1)}
        codec_of(date).encode(given_arguments)
        assert given_arguments == {"value": date(2024, 1, 1)}

    def test_whole_numbers_are_floats_too(self) -> None:
        assert typed(returned(float, 3)) == (float, 3.0)
        assert typed(codec_of(float).decode('{"value":3}')["value"]) == (float, 3.0)
        assert typed(codec_of(float | None).decode('{"value":3}')["value"]) == (float, 3.0)

    def test_a_whole_number_stays_one_where_it_may(self) -> None:
        assert typed(returned(float | int, 3)) == (int, 3)
        assert typed(returned(Decimal | int, 3)) == (int, 3)
        assert typed(returned(Decimal | float, 3)) == (float, 3.0)

    def test_members_of_mixed_enums_pass_as_plain_values(self) -> None:
        class Name(enum.StrEnum):
            ANNE = "anne"

        assert typed(returned(int, Level.HIGH)) == (int, 2)
        assert typed(returned(str, Name.ANNE)) == (str, "anne")

    def test_lists_and_tuples_stand_for_each_other(self) -> None:
        assert returned(list[int], (1, 2)) == [1, 2]
        assert returned(tuple[int, ...], [1, 2]) == (1, 2)
        assert returned(Any, (1, (2, 3))) == [1, [2, 3]]

    def test_a_moment_keeps_its_offset(self) -> None:
        summer = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
        found = returned(datetime, summer)
        assert isinstance(found, datetime)
        assert (found, found.utcoffset()) == (summer, timedelta(hours=2))
        assert codec_of(datetime).decode('{"value":"2024-07-01T12:00:00Z"}') == {
            "value": datetime(2024, 7, 1, 12, tzinfo=UTC)
        }

    def test_defaults_are_left_to_the_handler(self) -> None:
        def handle(a: int, b: date = date(2024, 1, 1), c: object = None) -> None: ...

        codec = PayloadCodec(handle)
        assert codec.encode({"a": 1}) == '{"a":1}'
        assert codec.decode('{"a":1}') == {"a": 1}
        assert codec.decode('{"a":1,"b":"2024-01-02"}') == {"a": 1, "b": date(2024, 1, 2)}

    def test_missing_fields_of_a_dataclass_have_their_defaults(self) -> None:
        assert codec_of(Line).decode('{"value":{"sku":"x","price":"1.50"}}')["value"] == Line("x", Decimal("1.50"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "needs the argument 'order_id'"),
            ({"order_id": 1, "x": 2, "y": 3}, "has no argument 'x', 'y'"),
            ({"order_id": 1, "context": 2}, "has no argument 'context'"),
            ({"order_id": "1"}, "cannot take argument 'order_id': expected int, got str"),
        ],
    )
    def test_the_message_names_job_argument_and_signature(self, arguments: dict[str, object], message: str) -> None:
        def send(context: object, order_id: int, note: str = "") -> None: ...

        with pytest.raises(PayloadError) as caught:
            PayloadCodec(send).encode(arguments)
        assert str(caught.value) == (
            f"Job '{send.__qualname__}' {message}. Its signature is send(order_id: int, note: str = '')."
        )

    @pytest.mark.parametrize(
        ("hint", "value", "message"),
        [
            (int, True, "'value': expected int, got bool"),
            (int, 1.0, "'value': expected int, got float"),
            (float, True, "'value': expected float, got bool"),
            (float, 10**400, "'value': the number is too large for a float"),
            (bool, 1, "'value': expected bool, got int"),
            (None, 0, "'value': expected None, got int"),
            (str, 1, "'value': expected str, got int"),
            (int | None, "1", r"'value': expected int \| None, got str"),
            (date, datetime(2024, 1, 1), "'value': expected date, got datetime"),  # noqa: DTZ001 - naive is allowed
            (datetime, date(2024, 1, 1), "'value': expected datetime, got date"),
            (UUID, "7", "'value': expected UUID, got str"),
            (Decimal, 1.5, "'value': expected Decimal, got float"),
            (Decimal, Decimal("NaN"), "'value': NaN and infinity cannot be kept"),
            (Color, "red", "'value': expected Color, got str"),
            (Literal["a", 1], "b", "'value': expected one of 'a', 1, got another"),
            (Literal["a", 1], True, "'value': expected one of 'a', 1, got bool"),
            (list[int], [1, "2"], r"'value\[1\]': expected int, got str"),
            (list[int], 1, r"'value': expected list\[int\], got int"),
            (list[int] | None, [1, "2"], r"'value\[1\]': expected int, got str"),
            (tuple[int, str], (1,), r"'value': expected tuple\[int, str\], got 1 values"),
            (tuple[int, str], 1, r"'value': expected tuple\[int, str\], got int"),
            (dict[str, int], {"a": "b"}, r"'value.a': expected int, got str"),
            (dict[str, int], {1: 1}, r"'value.\(key\)': expected str, got int"),
            (dict[int, int], {"1": 1}, r"'value.\(key\)': expected int, got str"),
            (dict[str, int], [], r"'value': expected dict\[str, int\], got list"),
            (Line, {"sku": "x"}, "'value': expected Line, got dict"),
            (Line, Cheap("x", Decimal(1)), "'value': expected Line, got Cheap"),
            (list[Line], [Line("x", 1.5)], r"'value\[0\].price': expected Decimal, got float"),  # type: ignore[arg-type] # wrong on purpose
            (Any, datetime(2024, 1, 1), "'value': datetime is not a JSON value; annotate"),  # noqa: DTZ001 - any will do
            (Any, {"a": [1, {2}]}, r"'value.a\[1\]': set is not a JSON value"),
            (Any, {1: 2}, "'value': a key is not text"),
            (Any, math.nan, "NaN and infinity are not JSON values"),
            (float, math.inf, "NaN and infinity are not JSON values"),
            (Any, "\ud800", "half of a surrogate pair"),
            pytest.param(int, 10**5000, "cannot keep the arguments as JSON", id="huge"),
        ],
    )
    def test_values_that_do_not_fit(self, hint: object, value: object, message: str) -> None:
        with pytest.raises(PayloadError, match=message):
            codec_of(hint).encode({"value": value})

    @pytest.mark.parametrize("hint", [Any, list[Any], Tree])
    def test_what_holds_itself(self, hint: object) -> None:
        loop: list[object] = []
        loop.append(loop)
        tree = Tree("a")
        tree.children.append(tree)
        with pytest.raises(PayloadError, match="holds itself, or is nested too deeply"):
            codec_of(hint).encode({"value": tree if hint is Tree else loop})

    def test_the_size_is_in_the_message(self) -> None:
        def handle(value: str) -> None: ...

        codec = PayloadCodec(handle, max_bytes=20)
        assert codec.encode({"value": "x" * 8}) == '{"value":"xxxxxxxx"}'
        with pytest.raises(PayloadError, match="a payload of 21 bytes: at most 20 are allowed"):
            codec.encode({"value": "x" * 9})
        with pytest.raises(PayloadError, match="a payload of 22 bytes"):
            codec.encode({"value": "é" * 5})
        with pytest.raises(ConfigurationError, match="at most 1 bytes can hold nothing"):
            PayloadCodec(handle, max_bytes=1)

    def test_a_mebibyte_is_the_most_by_default(self) -> None:
        room = 1024 * 1024 - len('{"value":""}')
        assert len(codec_of(str).encode({"value": "x" * room})) == 1024 * 1024
        with pytest.raises(PayloadError, match="1,048,577 bytes: at most 1,048,576"):
            codec_of(str).encode({"value": "x" * (room + 1)})


class TestStoredPayloads:
    @pytest.mark.parametrize(
        ("hint", "payload", "message"),
        [
            (int, "nonsense", "which is not JSON"),
            (int, '{"value":NaN}', "which is not JSON: NaN is not a JSON value"),
            (int, "[1]", "it is a JSON list, not an object"),
            (int, "{}", "that lacks 'value': another version enqueued it"),
            (int, '{"value":1,"old":2}', "that holds 'old', which it does not take: another version enqueued it"),
            (int, '{"value":true}', "argument 'value': expected int, got bool"),
            (str, '{"value":1}', "argument 'value': expected str, got int"),
            (int | None, '{"value":"1"}', r"expected int \| None, got str"),
            (date, '{"value":"yesterday"}', "expected date, got text that is none"),
            (date, '{"value":1}', "expected date, got int"),
            (Decimal, '{"value":"much"}', "expected Decimal, got text that is none"),
            (Color, '{"value":"green"}', "Color has no such member"),
            (Shape, '{"value":"EDGY"}', "Shape has no such member"),
            (Color, '{"value":1}', "expected Color, got int"),
            (Literal["a"], '{"value":"b"}', "expected one of 'a', got another"),
            (list[int], '{"value":{}}', "got dict"),
            (list[int], '{"value":[1,"2"]}', r"'value\[1\]': expected int"),
            (tuple[int, int], '{"value":[1]}', "got 1 values"),
            (dict[str, int], '{"value":[]}', "got list"),
            (dict[int, int], '{"value":{"1_0":1}}', "a key that is no whole number"),
            (Line, '{"value":[]}', "expected Line, got list"),
            (Line, '{"value":{"sku":"x","price":"1","color":2}}', "Line has no field 'color'"),
            (Line, '{"value":{"sku":"x"}}', "Line needs 'price'"),
            (Guarded, '{"value":{"age":-1}}', "Guarded does not take it: age is negative"),
        ],
        ids=str,
    )
    def test_what_another_version_or_language_wrote(self, hint: object, payload: str, message: str) -> None:
        with pytest.raises(PayloadError, match=message):
            codec_of(hint).decode(payload)

    def test_nesting_is_bounded(self) -> None:
        deep = '{"value":' + "[" * 100_000 + "]" * 100_000 + "}"
        with pytest.raises(PayloadError, match="which is not JSON"):
            codec_of(Any).decode(deep)


class TestPydantic:
    def test_a_model_writes_and_reads_itself(self) -> None:
        pydantic = pytest.importorskip("pydantic")

        class Item(pydantic.BaseModel):  # type: ignore[misc,name-defined] # pydantic is optional
            number: int = pydantic.Field(alias="n")
            when: datetime

        item = Item(n=1, when=datetime(2024, 1, 1, tzinfo=UTC))
        assert returned(Item, item) == item
        assert returned(list[Item] | None, [item]) == [item]
        with pytest.raises(PayloadError, match="'value': expected Item, got dict"):
            codec_of(Item).encode({"value": {"n": 1}})
        with pytest.raises(PayloadError, match=r"Item does not take it: n: .*; when: Field required"):
            codec_of(Item).decode('{"value":{"n":"x"}}')

    def test_a_root_model_may_be_any_json(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        numbers = pydantic.RootModel[list[int]]
        assert returned(numbers, numbers([1, 2])) == numbers([1, 2])
        with pytest.raises(ConfigurationError, match="look the same in JSON"):
            codec_of(numbers | None)

    def test_a_model_that_cannot_be_json(self) -> None:
        pydantic = pytest.importorskip("pydantic")

        class Raw(pydantic.BaseModel):  # type: ignore[misc,name-defined] # pydantic is optional
            data: bytes

        with pytest.raises(PayloadError, match="Raw cannot be written as JSON"):
            codec_of(Raw).encode({"value": Raw(data=b"\xff")})
