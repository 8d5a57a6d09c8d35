"""Rows as objects: Pydantic models or dataclasses, whichever the user has. Neither is imported here."""

from __future__ import annotations

import dataclasses
import types
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..core.errors import ConfigurationError, SerializationError


def check_model(model: object, kind: str) -> None:
    """Check that rows can be turned into ``model``.

    Raises:
        ConfigurationError: it is neither a Pydantic model nor a dataclass.
    """
    if model is None or (isinstance(model, type) and (_is_pydantic(model) or dataclasses.is_dataclass(model))):
        return
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    raise ConfigurationError(f"{kind}: model must be a Pydantic BaseModel or a dataclass, but '{name}' is neither.")


def to_model(model: Any, row: dict[str, object]) -> Any:
    """Return the row as an object of ``model``.

    Raises:
        SerializationError: it does not fit; the message says which field.
    """
    try:
        if _is_pydantic(model):
            return model.model_validate(row)
        known = {field.name for field in dataclasses.fields(model) if field.init}
        _require_values(model, row)
        return model(**{name: value for name, value in row.items() if name in known})
    except (TypeError, ValueError) as error:
        raise SerializationError(f"A row does not fit {model.__name__}: {_said(error)}.") from error


def _require_values(model: type, row: dict[str, object]) -> None:
    """Refuse NULL for a dataclass field that is not declared to take None. Other types are left to the dataclass.

    Raises:
        ValueError: there is such a field.
    """
    for name in _never_none(model):
        if name in row and row[name] is None:
            raise ValueError(f"{name}: it is NULL, but the field does not take None (declare it as '… | None')")


@lru_cache(maxsize=256)
def _never_none(model: type) -> tuple[str, ...]:
    """Return a dataclass's fields that do not take None, as far as their annotations can be read."""
    try:
        hints = get_type_hints(model)
    except Exception:  # whatever an annotation refers to that is not there: the type checker knows, we do not
        return ()
    return tuple(
        field.name for field in dataclasses.fields(model) if field.init and not _takes_none(hints.get(field.name, Any))
    )


def _takes_none(hint: object) -> bool:
    if get_origin(hint) is Annotated:
        return _takes_none(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return any(map(_takes_none, get_args(hint)))
    return hint in (None, types.NoneType, Any, object) or isinstance(hint, TypeVar)


def _said(error: Exception) -> str:
    """Return what is wrong with which field. Pydantic's own text runs over lines and quotes the values."""
    problems = getattr(error, "errors", None)
    if problems is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems())


def to_row(value: object) -> dict[str, object]:
    """Return a dict, Pydantic model or dataclass object as the row it stands for.

    An object's enum members become their values, and objects inside it dicts: what reading makes of a row is undone. A
    Pydantic field with an alias is written under the alias, because it is read under it; under its own name if the
    model takes that too (``populate_by_name``).

    Raises:
        ConfigurationError: it is none of them.
    """
    if isinstance(value, dict):
        return value
    if _is_pydantic(type(value)):
        dumped: dict[str, object] = value.model_dump()  # type: ignore[attr-defined]  # a Pydantic model has it
        return {_column_of(type(value), name): _plain(each) for name, each in dumped.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise ConfigurationError(
        f"A row must be a dict, a Pydantic model or a dataclass object, not {type(value).__name__}."
    )


def _plain(value: object) -> object:
    """Return what a driver can store. Left to them, one writes an enum member's name and another refuses it.

    Of Pydantic's own values, a URL is its text, and a secret what it hides: a driver would write its asterisks.
    """
    if isinstance(value, Enum):
        return _plain(value.value)
    if hasattr(type(value), "get_secret_value"):
        return _plain(value.get_secret_value())  # type: ignore[attr-defined]  # it has it
    if hasattr(type(value), "unicode_string"):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _column_of(model: Any, name: str) -> str:
    """Return the column that a Pydantic field is read from."""
    settings = model.model_config
    if settings.get("populate_by_name") or settings.get("validate_by_name") or name not in model.model_fields:
        return name
    alias = model.model_fields[name].validation_alias
    return alias if isinstance(alias, str) else name


def is_row(value: object) -> bool:
    """Return whether ``to_row`` takes the value."""
    return (
        isinstance(value, dict)
        or _is_pydantic(type(value))
        or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    )


def _is_pydantic(model: type) -> bool:
    return hasattr(model, "model_validate") and hasattr(model, "model_dump")
