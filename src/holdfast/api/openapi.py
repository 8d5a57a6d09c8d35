"""The OpenAPI document: what the framework finds out by itself, and what the middleware adds to every operation."""

from __future__ import annotations

from typing import Any

from fastapi import Depends
from pydantic import BaseModel

from .envelope import Failed
from .middleware import CORRELATION_HEADER, CORRELATION_PATTERN
from .parameters import only

_REASONS = {
    400: "The request is wrong in itself; nothing was changed.",
    401: "No token, or one that is not accepted.",
    403: "The token does not have the role, or the request comes from another site.",
    404: "There is no such thing.",
    408: "The body did not come in time; nothing was changed.",
    409: "It is not, or no longer, in a state that allows it; nothing was changed.",
    413: "The body is larger than 64 KiB, or a message is larger than the queue takes.",
    415: "The body is not said to be JSON.",
    429: "Too many requests; `Retry-After` says when to try again.",
    500: "A mistake on the server's side.",
    503: "The database or the queue does not answer.",
}
_ALWAYS = (401, 403, 408, 429, 500, 503)
_CORRELATION: dict[str, Any] = {"type": "string", "pattern": CORRELATION_PATTERN}
_REQUEST_HEADER = {
    "name": CORRELATION_HEADER,
    "in": "header",
    "required": False,
    "description": "Ties the request to what belongs together; comes back in the answer. Made up when left out.",
    "schema": _CORRELATION,
}
_CORRELATION_HEADER = {"description": "The correlation id.", "required": True, "schema": _CORRELATION}
_RETRY_HEADER = {
    "description": "Seconds to wait.",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}
_OF_THE_FRAMEWORK = ("HTTPValidationError", "ValidationError")


def answers(
    model: type[Any], *refusals: int, query: type[BaseModel] | None = None, leaves_out: bool = False
) -> dict[str, Any]:
    """Return how an operation answers: with this, or a refusal of these kinds or those that every operation has.

    It takes the parameters of ``query`` and no other. ``leaves_out``: what the answer was not given is not in it.
    """
    statuses = sorted({*refusals, *_ALWAYS})
    return {
        "response_model": model,
        "response_model_exclude_unset": leaves_out,
        "responses": {status: {"model": Failed, "description": _REASONS[status]} for status in statuses},
        "dependencies": [Depends(only() if query is None else only(query))],
    }


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Return the framework's document as it is true: with our headers, and without the framework's own errors."""
    for operations in document["paths"].values():
        for operation in operations.values():
            parameters = operation.setdefault("parameters", [])
            for parameter in parameters:
                parameter["schema"] = _without_null(parameter["schema"])
            parameters.append(_REQUEST_HEADER)
            operation["responses"].pop("422", None)
            for status, response in operation["responses"].items():
                headers = response.setdefault("headers", {})
                headers[CORRELATION_HEADER] = _CORRELATION_HEADER
                if status in ("429", "503"):
                    headers["Retry-After"] = _RETRY_HEADER
    for name in _OF_THE_FRAMEWORK:
        document["components"]["schemas"].pop(name, None)
    return document


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema without null: a parameter is there or it is left out."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    others = {name: value for name, value in schema.items() if name not in ("anyOf", "title")}
    if len(choices) == 1:
        return {**choices[0], **others}
    return {"anyOf": choices, **others} if choices else others
