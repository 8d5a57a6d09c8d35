"""Texts longer than a property of an Azure table can be: laid over several, and never cut short.

A property holds 64 KiB and an entity 1 MiB, both counted in UTF-16. A long text lies in ``Name``, ``Name_1`` and so on,
where every tool can read it. When that makes the entity too large, its longest texts are packed instead:
compressed UTF-8 in binary properties ``Name_packed``, ``Name_packed_1``, and no ``Name``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import ConfigurationError

MOST_BYTES = 1024 * 1024
RESERVED_BYTES = 16 * 1024  # for what is said about a letter later
_UNIT_BYTES = 2
_PART_BYTES = 32_000 * _UNIT_BYTES
_PACKED_BYTES = 60 * 1024
_MOST_PARTS = 255  # a row has no more properties
_PARTS = "_parts"
_PACKED = "_packed"


def with_texts(
    short: Mapping[str, Any],
    texts: Mapping[str, str | None],
    what: str,
    *,
    beside: Mapping[str, Any] | None = None,
    reserved_bytes: int = RESERVED_BYTES,
) -> dict[str, Any]:
    """Return properties for an entity: short ones, and texts of any length.

    What is ``beside`` them in the entity counts too, and some bytes are left for later.

    Raises:
        ConfigurationError: even packed they are too large for one entity; nothing was cut.
    """
    most_bytes = MOST_BYTES - reserved_bytes
    given = {name: text for name, text in texts.items() if text is not None}
    laid_out = {name: _numbered(name, _parts_of(text)) for name, text in given.items()}
    for name in sorted(given, key=lambda name: len(given[name]), reverse=True):
        if size_of({**(beside or {}), **_entity(short, laid_out)}) <= most_bytes:
            break
        laid_out[name] = _numbered(name + _PACKED, _packed(given[name]))
    entity = _entity(short, laid_out)
    size = size_of({**(beside or {}), **entity})
    if size > most_bytes:
        raise ConfigurationError(
            f"{what} is too large for an Azure table: it would take {size} bytes, and a row has {most_bytes}. Nothing "
            "was written, and nothing was cut off. Keep the records in a database, or make it smaller."
        )
    return entity


def text_in(properties: Mapping[str, Any], name: str) -> str | None:
    """Return a text that ``with_texts`` laid out; None when there is none.

    Raises:
        ConfigurationError: a part of it is missing, or it cannot be unpacked.
    """
    packed = [each for each in _joined(properties, name + _PACKED) if isinstance(each, bytes)]
    if packed:
        try:
            return zlib.decompress(b"".join(packed)).decode("utf-8")
        except (zlib.error, ValueError) as error:
            raise ConfigurationError(
                f"'{properties.get('RowKey', '')}' has a {name} that cannot be unpacked."
            ) from error
    parts = _joined(properties, name)
    return "".join(map(str, parts)) if parts else None


def text_left_in(properties: Mapping[str, Any], name: str) -> str | None:
    """Return what is left of a text, whoever wrote it: without the parts that are missing, empty if it is packed."""
    try:
        return text_in(properties, name)
    except ConfigurationError:
        return "".join(str(each) for each in _present(properties, name))


def properties_of(properties: Mapping[str, Any], name: str) -> list[str]:
    """Return the names of all properties that a text lies in."""
    laid_out = [name, name + _PACKED]
    named = [_property(each, number) for each in laid_out for number in range(_count(properties, each))]
    return [each for each in (*named, *(each + _PARTS for each in laid_out)) if each in properties]


def size_of(properties: Mapping[str, Any]) -> int:
    """Return how many bytes an entity takes in the table, by the rule of Azure's documentation."""
    keys = ("PartitionKey", "RowKey")
    size = 4 + sum(_size_of_text(properties[key]) for key in keys)
    for name, value in properties.items():
        if name not in keys:
            size += 8 + _size_of_text(name) + _size_of_value(value)
    return size


def _entity(short: Mapping[str, Any], laid_out: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    entity = dict(short)
    for properties in laid_out.values():
        entity.update(properties)
    return entity


def _numbered(name: str, contents: Sequence[str] | Sequence[bytes]) -> dict[str, Any]:
    properties: dict[str, Any] = {_property(name, number): content for number, content in enumerate(contents)}
    if len(contents) > 1:
        properties[name + _PARTS] = len(contents)
    return properties


def _joined(properties: Mapping[str, Any], name: str) -> list[Any]:
    count = _count(properties, name)
    contents = _present(properties, name)
    if 1 < count != len(contents):
        raise ConfigurationError(
            f"'{properties.get('RowKey', '')}' has lost a part of its {name}: {count} are named, and not all are there."
        )
    return contents


def _present(properties: Mapping[str, Any], name: str) -> list[Any]:
    contents = [properties.get(_property(name, number)) for number in range(_count(properties, name))]
    return [content for content in contents if content is not None]


def _count(properties: Mapping[str, Any], name: str) -> int:
    """Return how many parts are named; what is no such number was not written by us."""
    count = properties.get(name + _PARTS, 1)
    return count if type(count) is int and 0 < count <= _MOST_PARTS else 1


def _property(name: str, number: int) -> str:
    return name if number == 0 else f"{name}_{number}"


def _parts_of(text: str) -> list[str]:
    """Return a text in pieces that a property holds; no piece ends in the middle of a character."""
    if len(text) <= _PART_BYTES // (2 * _UNIT_BYTES):  # it fits even when every character takes two units
        return [text]
    encoded, parts, start = text.encode("utf-16-le"), list[str](), 0
    while start < len(encoded):
        end = min(start + _PART_BYTES, len(encoded))
        if end < len(encoded) and 0xD8 <= encoded[end - 1] <= 0xDB:  # the first half of a pair
            end -= _UNIT_BYTES
        parts.append(encoded[start:end].decode("utf-16-le"))
        start = end
    return parts


def _packed(text: str) -> list[bytes]:
    content = zlib.compress(text.encode("utf-8"))
    return [content[start : start + _PACKED_BYTES] for start in range(0, len(content), _PACKED_BYTES)]


def _size_of_text(text: str) -> int:
    return len(text.encode("utf-16-le"))


def _size_of_value(value: object) -> int:
    if isinstance(value, str):
        return 4 + _size_of_text(value)
    if isinstance(value, bytes):
        return 4 + len(value)
    return 4 if isinstance(value, int) else 8
