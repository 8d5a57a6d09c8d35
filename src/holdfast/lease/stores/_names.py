"""What a document may be called, and how its name becomes a key where the store forbids some characters.

The rules are the same for every store here, so that documents can move between them.
"""

from __future__ import annotations

import re

from holdfast.core.errors import ConfigurationError
from holdfast.core.key_text import shown_key

_LONGEST_BYTES = 900
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"=([0-9A-F]{2})")
_LITERAL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")


def checked_document_name(name: str) -> str:
    """Return ``name`` when every store can keep a document under it.

    Raises:
        ConfigurationError: a segment between slashes is empty or ends with a dot (so also ``.`` and ``..``)
            or a space (which some databases ignore), or the name holds a backslash or control character, is
            not valid Unicode, or is longer than 900 bytes.
    """
    segments_are_sound = all(segment and not segment.endswith((".", " ")) for segment in name.split("/"))
    if not segments_are_sound or "\\" in name or _CONTROL.search(name) or not _fits(name):
        raise ConfigurationError(
            f"The document name {name!r} cannot be used: give 1 to {_LONGEST_BYTES} bytes of text without "
            "backslashes or control characters, where no part between slashes is empty or ends with a dot or space."
        )
    return name


def _fits(name: str) -> bool:
    try:
        return len(name.encode()) <= _LONGEST_BYTES
    except UnicodeEncodeError:
        return False


def name_of_at_most(longest: int, name: str, store: str) -> str:
    """Return ``name`` when every store can keep a document under it and it fits into the column of ``store``.

    Raises:
        ConfigurationError: the name cannot be used, or has more than ``longest`` characters.
    """
    if len(checked_document_name(name)) > longest:
        raise ConfigurationError(
            f"The document name {shown_key(name)} is too long for {store}: it has {len(name)} characters, and "
            f"{longest} are the most. Choose one that is shorter."
        )
    return name


def encoded_name(name: str) -> str:
    """Return ``name`` in letters, digits and ``_ . - =`` only; two names never give the same result.

    Every other byte of its UTF-8 form becomes ``=`` and two hexadecimal digits, so the result of a prefix is
    a prefix of the result.
    """
    return "".join(chr(byte) if byte in _LITERAL else f"={byte:02X}" for byte in name.encode())


def encoded_key(name: str, longest: int, store: str) -> str:
    """Return the encoded form of a document's name where ``store`` allows keys of ``longest`` characters.

    Raises:
        ConfigurationError: the name cannot be used, or its encoded form is longer.
    """
    key = encoded_name(checked_document_name(name))
    if len(key) > longest:
        raise ConfigurationError(
            f"The document name {name!r} is too long for {store}: as a key it has {len(key)} characters, and {longest} "
            "are allowed. Choose one that is shorter or plainer."
        )
    return key


def decoded_name(encoded: str) -> str:
    """Return the name that ``encoded_name`` turned into ``encoded``."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), encoded).encode("latin-1").decode()
