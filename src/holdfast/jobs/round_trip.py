"""Whether a value that went through JSON is what it was, compared field by field. Pydantic is not imported here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
    if hasattr(type(value), "model_fields") and hasattr(value, "model_dump"):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return {f".{name}": item for name, item in {**fields, **(value.model_extra or {})}.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def _is_same(given: Any, back: Any) -> bool:
    are_numbers = isinstance(given, (int, float)) and isinstance(back, (int, float))
    are_alike = isinstance(given, type(back)) or (are_numbers and not isinstance(given, bool | type(back)))
    try:
        return are_alike and bool(given == back)
    except Exception:  # comparing is the user's own
        return False
