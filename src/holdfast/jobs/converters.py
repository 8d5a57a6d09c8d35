"""Annotations of a handler's parameters as converters: how a value becomes JSON, and how it comes back.

A converter is made once, when the handler is decorated, so that a job only pays for looking at its values. What cannot
come back as it went in is refused then, not when the first such value is lost.
"""

from __future__ import annotations

import abc
import collections.abc
import dataclasses
import enum
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from ..core.errors import ConfigurationError
from .round_trip import difference, have_same_set

Kinds = frozenset[type]
SCALARS: Kinds = frozenset({str, int, float, bool, type(None)})
_ANY_JSON: Kinds = SCALARS | {list, dict}
_NOTHING: Kinds = frozenset()
_SUPPORTED = (
    "str, int, float, bool, None, list, tuple, dict, a union whose members differ in JSON, Literal, Enum, datetime, "
    "date, UUID, Decimal, a dataclass, a Pydantic model or Any"
)


class Misfit(Exception):  # noqa: N818 - never leaves this package: the codec turns it into a PayloadError
    """A value does not fit its annotation: where inside the argument, and why.

    ``is_by_name`` means that a field is missing or unknown: another version of the code has it otherwise.
    """

    def __init__(self, fact: str, where: str = "", *, is_by_name: bool = False) -> None:
        super().__init__(fact, where)
        self.fact = fact
        self.where = where
        self.is_by_name = is_by_name

    def inside(self, step: str) -> Misfit:
        """Return the same fact as seen from the value around it."""
        return Misfit(self.fact, step + self.where, is_by_name=self.is_by_name)


class Converter(abc.ABC):
    """Takes values of one annotation to JSON and back.

    ``kinds`` are the JSON types it writes; values of the types in ``exact`` pass unchanged both ways, so that callers
    may skip the converter for them.
    """

    exact: Kinds = _NOTHING

    def __init__(self, label: str, kinds: Kinds) -> None:
        self.label = label
        self.kinds = kinds

    @abc.abstractmethod
    def write(self, value: Any) -> object:
        """Return the value as JSON can hold it, or raise ``Misfit``."""

    @abc.abstractmethod
    def read(self, value: Any) -> object:
        """Return what was written as ``value``, or raise ``Misfit``."""

    def misfit(self, value: object) -> Misfit:
        """Return the error for a value of the wrong type. It names the type only: values may be secrets."""
        return Misfit(f"expected {self.label}, got {type(value).__name__}")


def converter_of(hint: object) -> Converter:
    """Return the converter for an annotation.

    Raises:
        ConfigurationError: its values cannot be kept as JSON; the message says what can.
    """
    return _Maker().converter(hint)


class _Anything(Converter):
    """Any JSON value. Tuples come back as lists."""

    exact = SCALARS

    def __init__(self) -> None:
        super().__init__("a JSON value", _ANY_JSON)

    def write(self, value: Any) -> object:
        _check_json(value)
        return value

    def read(self, value: Any) -> object:
        return value


def _check_json(value: Any) -> None:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Misfit("a key is not text, and JSON knows no other keys; annotate it, as in dict[int, str]")
        _check_each(value, value.values(), ".{}")
    elif isinstance(value, (list, tuple)):
        _check_each(range(len(value)), value, "[{}]")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise Misfit(f"{type(value).__name__} is not a JSON value; annotate the parameter with its type")


def _check_each(keys: Iterable[object], values: Iterable[Any], step: str) -> None:
    if SCALARS.issuperset(map(type, values)):
        return
    for key, value in zip(keys, values, strict=True):
        try:
            _check_json(value)
        except Misfit as misfit:
            raise misfit.inside(step.format(key)) from None


class _Scalar(Converter):
    """Text, a number, a truth value or None. True is not a number; a whole number is accepted as a float."""

    def __init__(self, kind: type) -> None:
        super().__init__("None" if kind is type(None) else kind.__name__, frozenset({kind}))
        self._kind = kind
        self.exact = self.kinds

    def write(self, value: Any) -> object:
        if type(value) in self.kinds:
            return value
        if isinstance(value, bool) or self._kind in (bool, type(None)):
            raise self.misfit(value)
        if self._kind is float and isinstance(value, (int, float)):
            return _as_float(value)
        if isinstance(value, self._kind) and isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, self._kind) and isinstance(value, int):
            return int(value)
        raise self.misfit(value)

    def read(self, value: Any) -> object:
        if type(value) in self.kinds:
            return value
        if self._kind is float and type(value) is int:
            return _as_float(value)
        raise self.misfit(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Misfit("the number is too large for a float") from None


class _Text(Converter):
    """A type with a textual form that gives the same value back."""

    def __init__(
        self, kind: type, accepts: Callable[[Any], bool], write: Callable[[Any], str], read: Callable[[str], object]
    ) -> None:
        super().__init__(kind.__name__, frozenset({str}))
        self._accepts, self._write, self._read = accepts, write, read

    def write(self, value: Any) -> object:
        if not self._accepts(value):
            raise self.misfit(value)
        return self._write(value)

    def read(self, value: Any) -> object:
        if type(value) is not str:
            raise self.misfit(value)
        try:
            return self._read(value)
        except (ValueError, InvalidOperation):
            raise Misfit(f"expected {self.label}, got text that is none") from None


def _is_decimal(value: object) -> bool:
    if isinstance(value, Decimal) and not value.is_finite():
        raise Misfit("NaN and infinity cannot be kept as JSON")
    return isinstance(value, (Decimal, int)) and not isinstance(value, bool)


_TEXTS: dict[object, Converter] = {
    datetime: _Text(
        datetime, lambda value: isinstance(value, datetime), lambda value: value.isoformat(), datetime.fromisoformat
    ),
    date: _Text(
        date,
        lambda value: isinstance(value, date) and not isinstance(value, datetime),
        lambda value: value.isoformat(),
        date.fromisoformat,
    ),
    UUID: _Text(UUID, lambda value: isinstance(value, UUID), str, UUID),
    Decimal: _Text(Decimal, _is_decimal, str, Decimal),
}
_SCALARS: dict[object, Converter] = {kind: _Scalar(kind) for kind in SCALARS}


class _Enum(Converter):
    """A member by its value when all values are text or whole numbers, else by its name."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        kinds = frozenset(type(member.value) for member in kind)
        self._by_value = bool(kinds) and kinds <= {str, int}
        super().__init__(kind.__name__, kinds if self._by_value else frozenset({str}))
        self._kind = kind

    def write(self, value: Any) -> object:
        if not isinstance(value, self._kind):
            raise self.misfit(value)
        return value.value if self._by_value else value.name

    def read(self, value: Any) -> object:
        if type(value) not in self.kinds:
            raise self.misfit(value)
        try:
            return self._kind(value) if self._by_value else self._kind[value]
        except (KeyError, ValueError):
            raise Misfit(f"{self.label} has no such member") from None


class _Literal(Converter):
    """One of a few values."""

    def __init__(self, values: Sequence[object]) -> None:
        self._pairs = [(value, _literal_json(value)) for value in values]
        super().__init__(f"one of {', '.join(map(repr, values))}", frozenset(type(kept) for _, kept in self._pairs))
        if len({(type(kept), kept) for _, kept in self._pairs}) < len({(type(value), value) for value in values}):
            raise _UnsupportedError(f"{self.label} (two of them look the same in JSON)")

    def write(self, value: Any) -> object:
        for known, kept in self._pairs:
            if type(value) is type(known) and value == known:
                return kept
        raise self._not_one(value)

    def read(self, value: Any) -> object:
        for known, kept in self._pairs:
            if type(value) is type(kept) and value == kept:
                return known
        raise self._not_one(value)

    def _not_one(self, value: object) -> Misfit:
        return Misfit(f"expected {self.label}, got {'another' if type(value) in self.kinds else type(value).__name__}")


def _is_literal(hint: object) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _literal_json(value: object) -> object:
    kept = _Enum(type(value)).write(value) if isinstance(value, enum.Enum) else value
    if type(kept) not in SCALARS:
        raise _UnsupportedError(f"Literal[{value!r}]")
    return kept


class _Array(Converter):
    """A list, or a tuple of any length. Either is accepted; the handler gets the annotated one."""

    def __init__(self, label: str, element: Converter, make: Callable[[Iterable[object]], object]) -> None:
        super().__init__(label, frozenset({list}))
        self._element, self._make = element, make

    def write(self, value: Any) -> object:
        if not isinstance(value, (list, tuple)):
            raise self.misfit(value)
        return self._each(value, self._element.write)

    def read(self, value: Any) -> object:
        if type(value) is not list:
            raise self.misfit(value)
        return self._make(self._each(value, self._element.read))

    def _each(self, values: Sequence[Any], convert: Callable[[Any], object]) -> Sequence[object]:
        if self._element.exact.issuperset(map(type, values)):
            return values
        return [_at(f"[{index}]", convert, value) for index, value in enumerate(values)]


class _FixedTuple(Converter):
    """A tuple with a type for each place."""

    def __init__(self, label: str, elements: Sequence[Converter]) -> None:
        super().__init__(label, frozenset({list}))
        self._elements = elements

    def write(self, value: Any) -> object:
        return [_at(f"[{n}]", element.write, item) for n, (element, item) in enumerate(self._pairs(value))]

    def read(self, value: Any) -> object:
        return tuple(_at(f"[{n}]", element.read, item) for n, (element, item) in enumerate(self._pairs(value)))

    def _pairs(self, value: Any) -> Iterable[tuple[Converter, object]]:
        if not isinstance(value, (list, tuple)):
            raise self.misfit(value)
        if len(value) != len(self._elements):
            raise Misfit(f"expected {self.label}, got {len(value)} values")
        return zip(self._elements, value, strict=True)


class _Dict(Converter):
    """A dict; its keys are written as text."""

    def __init__(self, label: str, key: Converter, value: Converter) -> None:
        super().__init__(label, frozenset({dict}))
        self._key, self._value = key, value
        if key.kinds != {str} and key.kinds != {int}:
            raise _UnsupportedError(f"{label} (JSON keys are text: use keys that are written as text or whole numbers)")

    def write(self, value: Any) -> object:
        if not isinstance(value, dict):
            raise self.misfit(value)
        if self._passes(value):
            return value
        return {str(_at(".(key)", self._key.write, key)): self._at(key, item, True) for key, item in value.items()}

    def read(self, value: Any) -> object:
        if type(value) is not dict:
            raise self.misfit(value)
        if self._passes(value):
            return value
        return {_at(".(key)", self._read_key, key): self._at(key, item, False) for key, item in value.items()}

    def _passes(self, value: dict[Any, Any]) -> bool:
        plain_keys = str in self._key.exact and self._key.exact.issuperset(map(type, value))
        return plain_keys and self._value.exact.issuperset(map(type, value.values()))

    def _at(self, key: object, item: object, is_write: bool) -> object:
        return _at(f".{key}", self._value.write if is_write else self._value.read, item)

    def _read_key(self, text: str) -> object:
        if self._key.kinds == {str}:
            return self._key.read(text)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= sys.int_info.default_max_str_digits):
            raise Misfit(f"expected {self.label}, got a key that is no whole number")
        return self._key.read(int(text))


class _Dataclass(Converter):
    """A dataclass as an object of the fields it is made from; the others are made anew.

    Only that very class is taken: fields of a subclass would be lost.
    """

    def __init__(self, kind: type, maker: _Maker) -> None:
        super().__init__(kind.__name__, frozenset({dict}))
        self._kind = kind
        known = [item for item in dataclasses.fields(kind) if item.init]
        if {item.name for item in known} != inspect.signature(kind).parameters.keys():
            raise _UnsupportedError(f"{self.label} (a dataclass that is made from other things than its fields)")
        hints = _hints(kind)
        self._fields = {item.name: maker.converter(hints[item.name]) for item in known}
        missing = dataclasses.MISSING
        self._required = {i.name for i in known if i.default is missing and i.default_factory is missing}
        self._is_changed = hasattr(kind, "__post_init__")

    def write(self, value: Any) -> object:
        if type(value) is not self._kind:
            raise self.misfit(value)
        written = {name: _at(f".{name}", field.write, getattr(value, name)) for name, field in self._fields.items()}
        if self._is_changed:
            self._require_same(value, self.read(written))
        return written

    def _require_same(self, value: Any, back: Any) -> None:
        """Refuse what its own ``__post_init__`` makes something else of when it is made again."""
        for name in self._fields:
            where = difference(getattr(value, name), getattr(back, name))
            if where is not None:
                raise Misfit(_loss(f"{self.label}.{name}{where}"))

    def read(self, value: Any) -> object:
        if type(value) is not dict:
            raise self.misfit(value)
        if unknown := value.keys() - self._fields.keys():
            raise Misfit(f"{self.label} has no field {_listed(unknown)}", is_by_name=True)
        if missing := self._required - value.keys():
            raise Misfit(f"{self.label} needs {_listed(missing)}", is_by_name=True)
        fields = {name: _at(f".{name}", self._fields[name].read, item) for name, item in value.items()}
        try:
            return self._kind(**fields)
        except (TypeError, ValueError) as error:
            raise Misfit(f"{self.label} does not take it: {error}") from error


_WAYS: tuple[dict[str, bool], ...] = tuple(
    {"exclude_unset": exclude_unset, "by_alias": by_alias}
    for exclude_unset in (True, False)
    for by_alias in (True, False)
)
"""How models are written. Without what was not set, so that it arrives as not set; with it where it would arrive as
something else, such as an id that is made anew for each. A model may write its fields under other names than it reads.
"""


class _Model(Converter):
    """A Pydantic model, which knows best how to write and read itself. Pydantic is not imported here.

    Each value is read back when it is written: what a model hides, leaves out or does not take again is refused then,
    not when the job runs.
    """

    def __init__(self, kind: Any) -> None:
        is_root = getattr(kind, "__pydantic_root_model__", False)
        super().__init__(kind.__name__, _ANY_JSON if is_root else frozenset({dict}))
        self._kind = kind

    def write(self, value: Any) -> object:
        if type(value) is not self._kind:
            raise self.misfit(value)
        facts: list[str] = []
        for options in _WAYS:
            dumped = self._dumped(value, options)
            try:
                back = self.read(dumped)
            except Misfit as misfit:
                facts.append(f"{self.label} would not be taken back from JSON: {misfit.fact}")
                continue
            where = difference(value, back)
            if where is None and (not options["exclude_unset"] or have_same_set(value, back)):
                return dumped
            facts.append(_loss(f"{self.label}{where}"))
        raise Misfit(facts[-len(_WAYS) // 2])

    def _dumped(self, value: Any, options: Mapping[str, bool]) -> object:
        try:
            dumped: object = value.model_dump(mode="json", round_trip=True, warnings=False, **options)
        except ValueError as error:
            raise Misfit(f"{self.label} cannot be written as JSON: {error}") from error
        return dumped

    def read(self, value: Any) -> object:
        try:
            model: object = self._kind.model_validate_json(json.dumps(value))  # strict models take texts from JSON only
        except (TypeError, ValueError) as error:
            raise Misfit(f"{self.label} does not take it: {_said(error)}", is_by_name=_is_by_name(error)) from error
        return model


def _loss(what: str) -> str:
    return f"{what} would not come back from JSON as it is; use a type that does, or pass where it can be found"


def _said(error: Exception) -> str:
    """Return which fields are wrong and why, on one line and without their values."""
    problems = getattr(error, "errors", None)
    if problems is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems())


def _is_by_name(error: Exception) -> bool:
    """Return whether all that a Pydantic model refuses is missing or unknown fields."""
    problems: list[Any] = getattr(error, "errors", list)()
    return bool(problems) and all(problem["type"] in ("missing", "extra_forbidden") for problem in problems)


class _Either(Converter):
    """A union. Its members write different JSON types, so that what was written tells which of them it was."""

    def __init__(self, label: str, members: Sequence[Converter]) -> None:
        super().__init__(label, frozenset().union(*(member.kinds for member in members)))
        if len(self.kinds) != sum(len(member.kinds) for member in members):
            raise _UnsupportedError(f"{label} (its members look the same in JSON: use one of them)")
        self.exact = frozenset().union(*(member.exact for member in members))
        # A whole number is for the member that wants one, not for a float or a Decimal that would take it too.
        self._members = sorted(members, key=lambda member: (not member.exact, float in member.kinds))
        self._readers = {kind: member for member in members for kind in member.kinds}
        if float in self._readers:
            self._readers.setdefault(int, self._readers[float])

    def write(self, value: Any) -> object:
        deepest = self.misfit(value)
        for member in self._members:
            try:
                return member.write(value)
            except Misfit as misfit:
                deepest = max(deepest, misfit, key=lambda found: len(found.where))
        raise deepest

    def read(self, value: Any) -> object:
        member = self._readers.get(type(value))
        if member is None:
            raise self.misfit(value)
        return member.read(value)


class _Later(Converter):
    """Stands in for a dataclass inside itself."""

    def __init__(self, kind: type, made: Mapping[type, Converter]) -> None:
        super().__init__(kind.__name__, frozenset({dict}))
        self._kind, self._made = kind, made

    def write(self, value: Any) -> object:
        return self._made[self._kind].write(value)

    def read(self, value: Any) -> object:
        return self._made[self._kind].read(value)


class _UnsupportedError(ConfigurationError):
    """An annotation whose values cannot be kept."""

    def __init__(self, label: str) -> None:
        super().__init__(f"{label} cannot be kept in a payload. Use {_SUPPORTED}.")


class _Maker:
    """Makes converters, each dataclass once, so that one may hold itself."""

    def __init__(self) -> None:
        self._made: dict[type, Converter] = {}
        self._begun: set[type] = set()

    def converter(self, hint: Any) -> Converter:
        if hint in (Any, object, inspect.Parameter.empty):
            return _Anything()
        if isinstance(hint, typing.NewType):
            return self.converter(hint.__supertype__)
        hint = type(None) if hint is None else hint
        if not isinstance(hint, collections.abc.Hashable):
            raise _UnsupportedError(_label(hint))
        found = _SCALARS.get(hint) or _TEXTS.get(hint)
        if found is not None:
            return found
        if typing.get_origin(hint) is not None or hint in (list, tuple, dict):
            return self._generic(hint)
        if isinstance(hint, type):
            return self._class(hint)
        raise _UnsupportedError(_label(hint))

    def _generic(self, hint: Any) -> Converter:
        origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if origin is typing.Annotated:
            return self.converter(arguments[0])
        if origin is typing.Literal:
            return _Literal(arguments)
        if origin in (typing.Union, types.UnionType):
            return self._union(_label(hint), arguments)
        if origin in (list, collections.abc.Sequence):
            return _Array(_label(hint), self.converter(*arguments or (Any,)), list)
        if origin is tuple:
            return self._tuple(_label(hint), arguments or (Any, ...))
        if origin in (dict, collections.abc.Mapping):
            key, value = arguments or (str, Any)
            return _Dict(_label(hint), self.converter(str if key is Any else key), self.converter(value))
        raise _UnsupportedError(_label(hint))

    def _tuple(self, label: str, arguments: tuple[Any, ...]) -> Converter:
        if len(arguments) == 2 and arguments[1] is ...:
            return _Array(label, self.converter(arguments[0]), tuple)
        return _FixedTuple(label, [self.converter(argument) for argument in arguments])

    def _union(self, label: str, arguments: tuple[Any, ...]) -> Converter:
        values = [value for hint in arguments if _is_literal(hint) for value in typing.get_args(hint)]
        rest = [hint for hint in arguments if not _is_literal(hint) and not (hint is type(None) and None in values)]
        members = [self.converter(hint) for hint in rest] + ([_Literal(values)] if values else [])
        if any(isinstance(member, _Anything) for member in members) and all(member.exact for member in members):
            return _Anything()
        return _Either(label, members)

    def _class(self, kind: type) -> Converter:
        if issubclass(kind, enum.Enum):
            return _Enum(kind)
        if hasattr(kind, "model_validate") and hasattr(kind, "model_dump"):
            return _Model(kind)
        if not dataclasses.is_dataclass(kind):
            raise _UnsupportedError(_label(kind))
        if kind not in self._begun:
            self._begun.add(kind)
            self._made[kind] = _Dataclass(kind, self)
        return self._made.get(kind) or _Later(kind, self._made)


def _at(step: str, convert: Callable[[Any], object], value: object) -> object:
    try:
        return convert(value)
    except Misfit as misfit:
        raise misfit.inside(step) from None


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"The annotations of {kind.__name__} cannot be evaluated: {error}. Import what they name at run time."
        ) from error


def _label(hint: Any) -> str:
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__name__
    return str(hint).replace("typing.", "")


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(repr(name) for name in names))
