"""Typed payloads: a job's arguments are checked against its handler when they are enqueued, not when they are run.

The signature is looked at once. A value whose type JSON has itself costs one look at its type, so that an enqueue is
little more than ``json.dumps``; only other values go through a converter.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from ..core.errors import ConfigurationError, PayloadError
from ..core.handler_forms import is_generator
from ..core.strict_json import strictly_loaded
from .converters import Converter, Misfit, converter_of

CONTEXT = "context"
MAX_PAYLOAD_BYTES = 1024 * 1024


class OtherVersionError(PayloadError):
    """A stored payload has other names than its handler takes: another version of the code enqueued it.

    A worker of that version can run it, so it is worth waiting for one.
    """


class PayloadCodec:
    """Turns a handler's arguments into JSON and back.

    A first parameter named ``context`` is the worker's to fill and no part of the payload. A parameter without an
    annotation takes any JSON value. An argument that is left out is not stored: the handler's default applies when the
    job runs.

    Args:
        function: the handler; it is not called.
        max_bytes: the largest payload, as UTF-8.

    Raises:
        ConfigurationError: the handler's form, or the annotation of a parameter, cannot be that of a job.
    """

    def __init__(self, function: Callable[..., Any], *, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        if max_bytes < 2:
            raise ConfigurationError(f"A payload of at most {max_bytes} bytes can hold nothing. Allow more.")
        self.name: str = getattr(function, "__qualname__", type(function).__qualname__)
        _refuse_generator(self.name, function)
        parameters = _parameters(self.name, function)
        self.takes_context = bool(parameters) and _is_context(parameters[0])
        fields = parameters[self.takes_context :]
        _refuse_forms(self.name, fields)
        self.signature = f"{self.name.rpartition('.')[2]}{_shown(fields)}"
        self.max_bytes = max_bytes
        self._converters = _converters(self.name, function, fields)
        self._exact = {name: converter.exact for name, converter in self._converters.items()}
        self._names = frozenset(self._converters)
        self._required = frozenset(field.name for field in fields if field.default is field.empty)

    @property
    def fields(self) -> frozenset[str]:
        """Return the names of the arguments."""
        return self._names

    def encode(self, arguments: Mapping[str, object]) -> str:
        """Return the arguments as compact JSON.

        Raises:
            PayloadError: an argument is missing, unknown or of the wrong type, or the whole is too large.
        """
        given = arguments.keys()
        if not (given <= self._names and given >= self._required):
            self._refuse_names(given)
        exact = self._exact
        for name, value in arguments.items():
            if type(value) not in exact[name]:
                arguments = {name: self._written(name, value) for name, value in arguments.items()}
                break
        payload = self._dumped(arguments)
        if len(payload) > self.max_bytes or not payload.isascii():
            self._check_size(payload)
        return payload

    def decode(self, payload: str) -> dict[str, object]:
        """Return the arguments that were encoded, of the annotated types. Those that were left out are left out.

        Raises:
            OtherVersionError: it was written for another version of the handler.
            PayloadError: it is not JSON, or a value does not fit.
        """
        stored = self._loaded(payload)
        given = stored.keys()
        if not (given <= self._names and given >= self._required):
            self._refuse_stored(given)
        exact = self._exact
        for name, value in stored.items():
            if type(value) not in exact[name]:
                stored[name] = self._read(name, value)
        return stored

    def require_exact(self, payload: str) -> None:
        """Refuse a payload from elsewhere that reads well but that no enqueue here would have written.

        Raises:
            PayloadError: it does not fit, or holds a value of another kind than is kept, such as "yes" for true.
        """
        given, written = self._loaded(payload), self._loaded(self.encode(self.decode(payload)))
        where = _other_kind(given, written, "")
        if where is not None:
            raise self._refusal(f"cannot take '{where[1:]}' as it is written: its JSON value is of another type")

    def _written(self, name: str, value: object) -> object:
        if type(value) in self._exact[name]:
            return value
        try:
            return self._converters[name].write(value)
        except Misfit as misfit:
            raise self._refusal(f"cannot take argument '{name}{misfit.where}': {misfit.fact}") from misfit
        except RecursionError:
            raise self._refusal(f"cannot take argument '{name}': it holds itself, or is nested too deeply") from None

    def _read(self, name: str, value: object) -> object:
        try:
            return self._converters[name].read(value)
        except Misfit as misfit:
            fact = f"cannot read a stored payload: argument '{name}{misfit.where}': {misfit.fact}"
            refusal = self._refusal(fact)
            raise (OtherVersionError(str(refusal)) if misfit.is_by_name else refusal) from misfit
        except RecursionError:
            raise self._refusal(f"cannot read a stored payload: argument '{name}' is nested too deeply") from None

    def _dumped(self, arguments: Mapping[str, object]) -> str:
        try:
            return _dump(arguments if type(arguments) is dict else dict(arguments))
        except (TypeError, ValueError) as error:
            raise self._refusal(f"cannot keep the arguments as JSON: {_why(error)}") from error
        except RecursionError:
            raise self._refusal("cannot keep the arguments as JSON: they are nested too deeply") from None

    def _loaded(self, payload: str) -> dict[str, object]:
        try:
            stored = strictly_loaded(payload)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._refusal(f"cannot read a stored payload, which is not JSON: {error}") from error
        if type(stored) is not dict:
            raise self._refusal(f"cannot read a stored payload: it is a JSON {type(stored).__name__}, not an object")
        return stored

    def _check_size(self, payload: str) -> None:
        try:
            size = len(payload.encode())
        except UnicodeEncodeError:
            raise self._refusal("cannot keep the arguments: they hold half of a surrogate pair") from None
        if size > self.max_bytes:
            raise self._refusal(
                f"cannot take a payload of {size:,} bytes: at most {self.max_bytes:,} are allowed. Store it elsewhere "
                "and pass where it is, or allow more"
            )

    def _refuse_names(self, given: Iterable[str]) -> NoReturn:
        unknown, missing = set(given) - self._names, self._required - set(given)
        if unknown:
            raise self._refusal(f"has no argument {_listed(unknown)}")
        raise self._refusal(f"needs the argument {_listed(missing)}")

    def _refuse_stored(self, given: Iterable[str]) -> NoReturn:
        unknown, missing = set(given) - self._names, self._required - set(given)
        fact = f"holds {_listed(unknown)}, which it does not take" if unknown else f"lacks {_listed(missing)}"
        refusal = self._refusal(
            f"cannot read a stored payload that {fact}: another version enqueued it. Give new parameters a default, "
            "and remove old ones when no such job is left"
        )
        raise OtherVersionError(str(refusal))

    def _refusal(self, fact: str) -> PayloadError:
        return PayloadError(f"Job '{self.name}' {fact}. Its signature is {self.signature}.")


_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _other_kind(given: object, written: object, where: str) -> str | None:
    """Return where two JSON values first differ in kind; what one of them leaves out is not compared."""
    if isinstance(given, dict) and isinstance(written, dict):
        pairs = [(f"{where}.{name}", given[name], written[name]) for name in given.keys() & written.keys()]
    elif isinstance(given, list) and isinstance(written, list):
        pairs = [(f"{where}[{place}]", *both) for place, both in enumerate(zip(given, written, strict=False))]
    else:
        return None if _kind(given) is _kind(written) else where
    found = (_other_kind(one, other, place) for place, one, other in pairs)
    return next((place for place in found if place is not None), None)


def _kind(value: object) -> type:
    return float if type(value) is int else type(value)


def _why(error: Exception) -> str:
    said = str(error)
    return "NaN and infinity are not JSON values" if "float values are not JSON compliant" in said else said


def _refuse_generator(name: str, function: Callable[..., Any]) -> None:
    if is_generator(function):
        raise ConfigurationError(
            f"Job '{name}' is a generator (it has a yield), so calling it runs nothing. Remove the yield."
        )


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Job '{name}' is not a function whose signature can be read: {error}.") from error


def _is_context(parameter: inspect.Parameter) -> bool:
    by_position = (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return parameter.name == CONTEXT and parameter.kind in by_position


def _refuse_forms(name: str, fields: list[inspect.Parameter]) -> None:
    """Refuse parameters that a name and a value in a JSON object cannot fill."""
    for position, field in enumerate(fields):
        if field.kind is field.POSITIONAL_ONLY:
            fact = f"takes '{field.name}' by position only, but arguments are stored by name. Remove the '/'"
        elif field.kind in (field.VAR_POSITIONAL, field.VAR_KEYWORD):
            fact = f"takes '{field}', so its arguments cannot be checked. Name every parameter"
        elif field.name == CONTEXT:
            fact = "must have 'context' as its first parameter, which may be given by position"
        elif position == 0 and field.name in ("self", "cls") and field.annotation is field.empty:
            fact = f"is a method: nobody would fill '{field.name}'. Decorate a function"
        else:
            continue
        raise ConfigurationError(f"Job '{name}' {fact}.")


class _Source(str):
    """An annotation that was never evaluated, shown as it was written."""

    __slots__ = ()
    __repr__ = str.__str__


def _shown(fields: list[inspect.Parameter]) -> inspect.Signature:
    return inspect.Signature(
        [
            field.replace(annotation=_Source(field.annotation)) if isinstance(field.annotation, str) else field
            for field in fields
        ]
    )


def _converters(name: str, function: Callable[..., Any], fields: list[inspect.Parameter]) -> dict[str, Converter]:
    hints = _hints(name, function, fields)
    converters = {}
    for field in fields:
        try:
            converters[field.name] = converter_of(hints.get(field.name, Any))
        except ConfigurationError as error:
            raise ConfigurationError(f"Job '{name}', parameter '{field.name}': {error}") from error
    return converters


def _hints(name: str, function: Callable[..., Any], fields: list[inspect.Parameter]) -> dict[str, Any]:
    """Return the evaluated annotations of the payload. Others may name what is imported for type checkers only."""
    annotations = {field.name: field.annotation for field in fields if field.annotation is not field.empty}
    innermost = inspect.unwrap(function)
    innermost = getattr(innermost, "func", innermost)  # of a partial
    names = getattr(innermost, "__globals__", None) or getattr(type(innermost).__call__, "__globals__", {})
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__=annotations), globalns=names)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigurationError(
            f"Job '{name}': the annotations of its parameters cannot be evaluated: {error}. Import what they name at "
            "run time, at the top of the module."
        ) from error


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(repr(name) for name in names))
