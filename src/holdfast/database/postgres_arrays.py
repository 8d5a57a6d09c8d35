"""PostgreSQL's arrays: a list goes in, and a list comes out, also of types whose arrays psycopg hands out as text.

It does so for arrays of enums and domains, and a text is a sequence too: of its letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import Dialect, Enum, String
from sqlalchemy.types import TypeEngine

from .column_values import FROM_TEXT
from .kept_types import Kept

_TOKEN = re.compile(r'(?P<sign>[{},])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^{},"]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class KeptArray(Kept):
    """An array whose items are looked at as its columns are; ``stored`` is an array of such."""

    cache_ok = True
    takes_containers = True

    def whole(self, value: Any) -> Any:
        """Return the value, which is a list. A text, bytes or a dict would be taken apart."""
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"a list is wanted, not {type(value).__name__}")
        return value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what reads an array, also from its text."""
        read = super().result_processor(dialect, coltype) or (lambda value: value)
        item: TypeEngine[Any] = self.stored.item_type  # type: ignore[attr-defined]  # it is an array
        convert = _from_text(item)

        def process(value: Any) -> Any:
            if not isinstance(value, str) or convert is None:
                return value if isinstance(value, str) else read(value)
            return read(items_of(value, convert))

        return process


def items_of(text: str, convert: Callable[[str], Any]) -> list[Any]:
    """Return the items of an array that PostgreSQL has written, converted; arrays in it are lists."""
    whole: list[Any] = []
    open_lists = [whole]
    for token in _TOKEN.finditer(text, text.index("{")):
        sign, quoted, plain = token["sign"], token["quoted"], token["plain"]
        if sign == "{":
            inner: list[Any] = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif sign == "}":
            open_lists.pop()
        elif sign is None:
            is_null = plain is not None and plain.upper() == "NULL"
            item = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            open_lists[-1].append(None if is_null else convert(item))
    found: list[Any] = whole[0]
    return found


def _from_text(item: TypeEngine[Any]) -> Callable[[str], Any] | None:
    """Return what makes an item of its text; None where nobody here knows."""
    stored = item.stored if isinstance(item, Kept) else item
    if isinstance(stored, (String, Enum)):
        return str
    try:
        return FROM_TEXT.get(stored.python_type)
    except NotImplementedError:  # a type that only the database knows
        return str
