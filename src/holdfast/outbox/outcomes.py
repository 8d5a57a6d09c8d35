"""What a processor's handler may answer, besides simply returning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """The batch is done; the same as returning nothing."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Pass the batch by: what was written through ``context.transaction`` is undone, and the checkpoint moves on."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """The batch is done and committed; deliver no more until someone runs ``holdfast processor resume``."""

    reason: str = ""
