"""JSON as the standard has it: what Python's reader takes beyond it could be handed on to nobody."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


_decode = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode


def strictly_loaded(text: str) -> Any:
    """Return what a JSON text stands for.

    Raises:
        ValueError: it is not JSON, names NaN or infinity, or holds a number that is too large, such as 1e999.
        RecursionError: it is nested too deeply.
    """
    return _decode(text)
