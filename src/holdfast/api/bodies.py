"""Bodies of requests: JSON, of a bounded size and depth, read before anything else looks at them."""

from __future__ import annotations

from email.message import Message as Header
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from ..core.strict_json import strictly_loaded
from .errors import ApiError

MOST_BYTES = 64 * 1024
MOST_DEPTH = 16
_CHARSETS = (None, "utf-8")


async def checked_body(headers: Headers, receive: Receive) -> Receive:
    """Read the body and check it; return what gives it out again.

    Raises:
        ApiError: it is larger than 64 KiB (413), is not said to be JSON (415), or is not (400).
    """
    body = await _bounded(headers, receive)
    if body:
        _check_type(headers)
        _check_json(body)
    is_given_out = False

    async def give_out() -> Message:
        nonlocal is_given_out
        if is_given_out:
            return await receive()
        is_given_out = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give_out


async def _bounded(headers: Headers, receive: Receive) -> bytes:
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 10 or int(length) > MOST_BYTES):
        raise _too_large()
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MOST_BYTES:
            raise _too_large()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return bytes(body)


def _check_type(headers: Headers) -> None:
    content = Header()
    content["content-type"] = headers.get("content-type", "")
    charset = content.get_content_charset()
    if content.get_content_type() != "application/json" or charset not in _CHARSETS or "content-encoding" in headers:
        raise ApiError(
            415, "The body must be JSON in UTF-8. Send it with 'Content-Type: application/json'.", "Content-Type"
        )


def _check_json(body: bytes) -> None:
    try:
        content = strictly_loaded(body.decode("utf-8"))
    except (ValueError, RecursionError):  # also when it is not UTF-8, or a number has thousands of digits
        raise ApiError.validation("The body is not JSON.", "body") from None
    if _depth(content) > MOST_DEPTH:
        raise ApiError.validation(f"The body is nested more than {MOST_DEPTH} levels deep.", "body")


def _depth(content: Any) -> int:
    """Return how many levels there are, level by level: a recursion could itself be too deep."""
    depth, level = 0, [content]
    while level:
        depth += 1
        inner = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [part for item in inner if isinstance(item, list) for part in item]
    return depth


def _too_large() -> ApiError:
    return ApiError(413, f"The body is larger than {MOST_BYTES // 1024} KiB.", "body")
