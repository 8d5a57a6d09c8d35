"""A payload arrives as it was given, or is refused when it is enqueued: Pydantic models and dataclasses above all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, computed_field, field_validator

from holdfast.core.errors import PayloadError
from holdfast.jobs.payload import PayloadCodec


class Colour(Enum):
    RED = "red"


class Card(BaseModel):
    number: str


class GoldCard(Card):
    bonus: int = 0


class Secret(BaseModel):
    name: str
    password: SecretStr


class Hiding(BaseModel):
    name: str
    note: str = Field(default="", exclude=True)


class HidingWhatItNeeds(BaseModel):
    note: str = Field(exclude=True)


class Holder(BaseModel):
    card: Card
    others: list[Card] = []


class TwoNames(BaseModel):
    number: int = Field(validation_alias="in", serialization_alias="out")


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    number: int = Field(alias="n")


class WrittenOtherwise(BaseModel):
    """What it writes by its alias it does not read, and what it writes by its name it does."""

    number: int = Field(serialization_alias="out")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    price: Decimal

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def with_tax(self) -> Decimal:
        return self.price * 2


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    at: datetime
    day: date
    id: UUID
    price: Decimal
    colour: Colour
    tags: set[str]
    pair: tuple[int, str]
    path: PurePosixPath
    raw: bytes
    by_number: dict[int, Decimal]


class Anything(BaseModel):
    value: Any


class Lower(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _shortened(cls, name: str) -> str:
        return name[1:]


STRICT = Strict(
    at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    day=date(2026, 1, 2),
    id=UUID(int=7),
    price=Decimal("0.10"),
    colour=Colour.RED,
    tags={"a", "b"},
    pair=(1, "x"),
    path=PurePosixPath("/a"),
    raw=b"abc",
    by_number={1: Decimal("2.50")},
    more=[1, {"x": None}],  # type: ignore[call-arg] # it allows more
)


def codec_of(kind: type) -> PayloadCodec:
    def handle(value: Any) -> None: ...

    handle.__annotations__["value"] = kind
    return PayloadCodec(handle)


@pytest.mark.parametrize(
    "value",
    [
        STRICT,
        Computed(price=Decimal("1.5")),
        Aliased(n=3),
        WrittenOtherwise(number=4),
        Hiding(name="x"),
        Holder(card=Card(number="1"), others=[Card(number="2")]),
        Anything(value=[1, 2.5, {"a": None}]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_14_10_what_is_taken_arrives_as_it_was(value: Any) -> None:
    codec = codec_of(type(value))
    arrived = codec.decode(codec.encode({"value": value}))["value"]
    assert type(arrived) is type(value)
    assert arrived == value


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Secret(name="x", password=SecretStr("hunter2")),
            r"Secret\.password \(SecretStr\) would not come back",
        ),
        (lambda: Hiding(name="x", note="y"), r"Hiding\.note \(str\) would not come back"),
        (lambda: HidingWhatItNeeds(note="y"), "HidingWhatItNeeds would not be taken back from JSON: .*note: Field req"),
        (lambda: Holder(card=GoldCard(number="1", bonus=7)), r"Holder\.card \(GoldCard\)"),
        (lambda: Holder(card=Card(number="1"), others=[GoldCard(number="1")]), r"Holder\.others\[0\] \(GoldCard\)"),
        (lambda: TwoNames(**{"in": 1}), "TwoNames would not be taken back from JSON: .*in: Field required"),
        (lambda: Anything(value=(1, 2)), r"Anything\.value \(tuple\)"),
        (lambda: Anything(value=Decimal(1)), r"Anything\.value \(Decimal\)"),
        (lambda: Anything(value=float("nan")), r"Anything\.value \(float\)"),
        (lambda: Anything(value={1: 2}), r"Anything\.value\.1 \(int\)"),
        (lambda: Lower(name="abc"), r"Lower\.name \(str\)"),
        (lambda: Card.model_construct(number=5), "Card would not be taken back from JSON: .*number: Input should be"),
    ],
)
def test_14_10_what_would_not_is_refused_when_it_is_enqueued(make: Callable[[], Any], said: str) -> None:
    value = make()
    with pytest.raises(PayloadError, match=rf"cannot take argument 'value': {said}") as caught:
        codec_of(type(value)).encode({"value": value})
    assert "hunter2" not in str(caught.value)


def test_14_10_a_model_inside_a_dataclass_or_a_list_is_looked_at_too() -> None:
    def handle(cards: list[Holder]) -> None: ...

    with pytest.raises(PayloadError, match=r"argument 'cards\[1\]': Holder\.card \(GoldCard\)"):
        PayloadCodec(handle).encode(
            {"cards": [Holder(card=Card(number="1")), Holder(card=GoldCard(number="1", bonus=7))]}
        )


@dataclass
class Sealed:
    word: str
    seals: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.word = f"<{self.word}>"


@dataclass
class Stripped:
    word: str

    def __post_init__(self) -> None:
        self.word = self.word.strip()


def test_14_10_a_dataclass_that_makes_something_else_of_its_fields_each_time_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"argument 'value': Sealed\.word \(str\) would not come back"):
        codec_of(Sealed).encode({"value": Sealed("x")})
    codec = codec_of(Stripped)
    assert codec.decode(codec.encode({"value": Stripped(" x ")})) == {"value": Stripped("x")}


class Noted(BaseModel):
    _note: int = PrivateAttr(default=0)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    name: str = "x"


class Changes(BaseModel):
    a: int = 1
    b: int = 2
    inner: Card = Card(number="1")
    more: Holder | None = None


class Named(BaseModel):
    id: UUID = Field(default_factory=uuid4)
    a: int = 1


class Size(IntEnum):
    LARGE = 3


class Word(StrEnum):
    YES = "yes"


class Plain(BaseModel):
    text: str


def test_14_10_private_attributes_arrive_or_are_refused() -> None:
    codec, noted = codec_of(Noted), Noted()
    assert codec.decode(codec.encode({"value": noted}))["value"]._note == 0  # type: ignore[attr-defined]
    noted._note = 7
    with pytest.raises(PayloadError, match=r"Noted\._note \(int\) would not come back"):
        codec.encode({"value": noted})


@pytest.mark.parametrize(
    "value",
    [
        Changes(),
        Changes(b=3),
        Changes(a=1, b=2),
        Changes(inner=Card(number="1"), more=Holder(card=Card(number="2"))),
        Changes(more=Holder(card=Card(number="2"), others=[])),
    ],
    ids=repr,
)
def test_14_10_what_was_not_set_arrives_as_not_set(value: Changes) -> None:
    codec = codec_of(Changes)
    arrived: Any = codec.decode(codec.encode({"value": value}))["value"]
    assert arrived.model_fields_set == value.model_fields_set
    assert arrived.model_dump(exclude_unset=True) == value.model_dump(exclude_unset=True)
    assert arrived.model_dump() == value.model_dump()


def test_14_10_what_would_be_made_anew_arrives_as_it_was_but_as_set() -> None:
    codec, value = codec_of(Named), Named()
    arrived: Any = codec.decode(codec.encode({"value": value}))["value"]
    assert arrived.id == value.id
    assert arrived.model_fields_set == {"id", "a"}, "the one exception, told in docs/jobs.md"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Anything(value=Size.LARGE), r"Anything\.value \(Size\)"),
        (Anything(value=[{"a": Word.YES}]), r"Anything\.value\[0\]\.'a' \(Word\)"),
        (Plain.model_construct(text=Word.YES), r"Plain\.text \(Word\)"),
    ],
)
def test_14_10_members_of_enums_do_not_arrive_as_plain_values(value: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        codec_of(type(value)).encode({"value": value})
