"""Rows as objects: Pydantic models or dataclasses, whichever the user has. Neither is imported here."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

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
        return model(**{name: value for name, value in row.items() if name in known})
    except (TypeError, ValueError) as error:
        raise SerializationError(f"A row does not fit {model.__name__}: {_said(error)}.") from error


def _said(error: Exception) -> str:
    """Return what is wrong with which field. Pydantic's own text runs over lines and quotes the values."""
    problems = getattr(error, "errors", None)
    if problems is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems())


def to_row(value: object) -> dict[str, object]:
    """Return a dict, Pydantic model or dataclass object as the row it stands for.

    An object's enum members become their values, and objects inside it dicts: what reading makes of a row is undone.

    Raises:
        ConfigurationError: it is none of them.
    """
    if isinstance(value, dict):
        return value
    if _is_pydantic(type(value)):
        dumped: dict[str, object] = value.model_dump()  # type: ignore[attr-defined]  # a Pydantic model has it
        return {name: _plain(each) for name, each in dumped.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise ConfigurationError(
        f"A row must be a dict, a Pydantic model or a dataclass object, not {type(value).__name__}."
    )


def _plain(value: object) -> object:
    """Return what a driver can store. Left to them, one writes an enum member's name and another refuses it."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def is_row(value: object) -> bool:
    """Return whether ``to_row`` takes the value."""
    return (
        isinstance(value, dict)
        or _is_pydantic(type(value))
        or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    )


def _is_pydantic(model: type) -> bool:
    return hasattr(model, "model_validate") and hasattr(model, "model_dump")
