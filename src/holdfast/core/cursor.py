"""Where a trigger stands: a cursor value and the keys that break ties, as the checkpoint keeps them.

The stored form is the checkpoint spec's: ``{"kind": "timestamp+pk", "value": "…Z", "tiebreaker": {"id": 7}}``.
Cursors of sources that only speak azure-functions-db's ``fetch(cursor, batch_size)`` are kept as ``parts``, and so
is a cursor found in a state blob that azure-functions-db wrote, until the source has given its parts their types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import CursorSerializationError
from .types import CursorPart, CursorValue, JsonObject
from .values import from_json, from_text, kind_of, to_json, to_text

_SUFFIX = "+pk"
_PARTS_KIND = "parts"


@dataclass(frozen=True, slots=True)
class KeysetCursor:
    """The last delivered row's cursor value and key values, in order: everything above it is still to come."""

    value: object
    keys: tuple[tuple[str, object], ...]

    def to_json(self) -> JsonObject:
        """Return the checkpoint spec's form."""
        kind, text = to_text(self.value)
        return {
            "kind": kind + _SUFFIX,
            "value": text,
            "tiebreaker": {name: to_json(key) for name, key in self.keys},
        }

    @property
    def key_values(self) -> tuple[object, ...]:
        """Return the tie-breaking values without their names."""
        return tuple(value for _, value in self.keys)


@dataclass(frozen=True, slots=True)
class OpaqueCursor:
    """A cursor whose parts only its source understands."""

    parts: CursorValue

    def to_json(self) -> JsonObject:
        """Return a form that keeps a tuple apart from a single value."""
        is_tuple = isinstance(self.parts, tuple)
        return {
            "kind": _PARTS_KIND,
            "value": list(self.parts) if isinstance(self.parts, tuple) else self.parts,
        } | ({} if is_tuple else {"single": True})


Cursor = KeysetCursor | OpaqueCursor


def parse_cursor(form: object) -> Cursor | None:
    """Return the cursor kept in a checkpoint, or None when the checkpoint is at the beginning.

    Raises:
        CursorSerializationError: the form is not one this version knows.
    """
    if form is None:
        return None
    if isinstance(form, (str, int, float, bool, list, tuple)):
        return OpaqueCursor(parse_checkpoint_cursor(form))
    if not isinstance(form, dict) or not isinstance(form.get("kind"), str):
        raise CursorSerializationError(f"The stored cursor is a {type(form).__name__} without a kind.")
    if form["kind"] == _PARTS_KIND:
        return OpaqueCursor(parse_checkpoint_cursor(form.get("value")))
    return _parse_keyset(form)


def _parse_keyset(form: dict[str, Any]) -> KeysetCursor:
    kind = form["kind"]
    tiebreaker = form.get("tiebreaker")
    if not kind.endswith(_SUFFIX) or not isinstance(tiebreaker, dict):
        raise CursorSerializationError(f"The stored cursor of kind {kind!r} has no tiebreaker.")
    value = from_text(kind.removesuffix(_SUFFIX), form.get("value"))
    return KeysetCursor(value, tuple((str(name), from_json(key)) for name, key in tiebreaker.items()))


def serialize_cursor_part(value: object) -> CursorPart:
    """Return a value's JSON-safe part as events show it: text and numbers as they are, the rest as exact text."""
    kind = kind_of(value)
    if kind in ("text", "integer", "boolean"):
        return value  # type: ignore[return-value]  # kind_of has checked that it is a str, int or bool
    if kind == "float":
        return value  # type: ignore[return-value]  # kind_of has checked that it is a float
    return to_text(value)[1]


def parse_checkpoint_cursor(raw: object) -> CursorValue:
    """Return an event-style cursor (one part or a tuple of parts) read back from JSON.

    Raises:
        CursorSerializationError: it holds something that is not a JSON scalar.
    """
    if raw is None or isinstance(raw, (str, int, float, bool)):
        return raw
    if isinstance(raw, (list, tuple)):
        for index, part in enumerate(raw):
            if part is not None and not isinstance(part, (str, int, float, bool)):
                raise CursorSerializationError(f"Unsupported cursor part type at index {index}: {type(part).__name__}")
        return tuple(raw)
    raise CursorSerializationError(f"Unsupported cursor type in checkpoint: {type(raw).__name__}")
