"""Types shared by every part, with the names of azure-functions-db where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NewType

JsonScalar = str | int | float | bool | None
JsonValue = JsonScalar | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, Any]

CursorPart = JsonScalar
CursorValue = CursorPart | tuple[CursorPart, ...]
RawRecord = dict[str, object]
Row = RawRecord

OwnerId = NewType("OwnerId", str)
FencingToken = NewType("FencingToken", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDescriptor:
    """What a source is: a name for people, a kind, and the fingerprint of its definition.

    ``legacy_fingerprints`` are the forms under which the same definition may be found in older state, and
    ``former_fingerprint`` the one of the release before: it is kept in state beside the present one, so that workers of
    that release go on from the same checkpoint. ``rows_fingerprint`` is of what decides which rows it reads, and in
    which order, whichever database they are in.
    """

    name: str
    kind: str
    fingerprint: str
    legacy_fingerprints: tuple[str, ...] = ()
    former_fingerprint: str | None = None
    rows_fingerprint: str | None = None
