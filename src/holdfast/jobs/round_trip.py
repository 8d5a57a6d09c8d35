"""Whether a value that went through JSON is what it was, compared field by field. Pydantic is not imported here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any


def difference(given: object, back: object) -> str | None:
    """Return where two values first differ, such as ``.card.number (SecretStr)``; None when they are the same.

    What equals is the same. Models, dataclasses and containers are looked into, and must be of the same class: a field
    that a subclass adds would be lost.
    """
    parts, others = _parts(given), _parts(back)
    if parts is None or others is None or type(given) is not type(back):
        return None if _is_same(given, back) else f" ({type(given).__name__})"
    for step in [*parts, *(others.keys() - parts.keys())]:
        if step not in parts or step not in others:
            return f"{step} ({type(parts.get(step)).__name__})"
        found = difference(parts[step], others[step])
        if found is not None:
            return f"{step}{found}"
    return None


def _parts(value: Any) -> dict[str, object] | None:
    """Return what a value consists of, each with how it is reached; None when it is one piece."""
    if isinstance(value, Mapping):
        return {f".{key!r}": item for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"[{place}]": item for place, item in enumerate(value)}
    if _is_model(value):
        return {f".{name}": item for name, item in _stored_in(value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def have_same_set(given: Any, back: Any) -> bool:
    """Return whether two values that are the same otherwise tell the same fields of their models as having been set."""
    if _is_model(given) and given.model_fields_set != back.model_fields_set:
        return False
    parts, others = _parts(given), _parts(back)
    return parts is None or others is None or all(have_same_set(parts[step], others[step]) for step in parts)


def _is_model(value: Any) -> bool:
    return hasattr(type(value), "model_fields") and hasattr(value, "model_dump")


def _stored_in(model: Any) -> dict[str, Any]:
    fields = {name: getattr(model, name) for name in type(model).model_fields}
    private = {
        name: value
        for name, value in (model.__pydantic_private__ or {}).items()
        if not _is_made_anew(type(model).__private_attributes__.get(name), value)
    }
    return {**fields, **(model.model_extra or {}), **private}


def _is_made_anew(declared: Any, value: object) -> bool:
    """Return whether a private attribute is a tool, such as a lock, that each model makes for itself."""
    return getattr(declared, "default_factory", None) is not None and type(value).__eq__ is object.__eq__


def _is_same(given: Any, back: Any) -> bool:
    if isinstance(given, Enum) and type(given) is not type(back):  # a member for a plain value
        return False
    are_numbers = isinstance(given, (int, float)) and isinstance(back, (int, float))
    are_alike = isinstance(given, type(back)) or (are_numbers and not isinstance(given, bool | type(back)))
    try:
        return are_alike and bool(given == back)
    except Exception:  # comparing is the user's own
        return False
