"""Receipts: what shows that a beat or a report is about an assignment that its sender was given.

A receipt carries what the server wants to know again when the job is reported, and does not want to remember meanwhile:
whether the job's unique key outlives it, and its correlation id, under which the history finds a success that was
reported before. It is signed with a key that all servers of a database share, together with the claim and its owner:
numbers of jobs and names of workers are easy to guess, a receipt is not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import NamedTuple

from ...core.errors import PayloadError
from ..model import Claim, ClaimedJob, WorkerId

_KEEPS_KEY, _FREES_KEY = "1", "0"
_SIGNATURE_BYTES = 18


class Receipt(NamedTuple):
    """What a report brings back."""

    keeps_key: bool
    correlation_id: str


class Receipts:
    """Writes receipts, and reads those that it, or another server with the same key, has written."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def write(self, owner: WorkerId, job: ClaimedJob) -> str:
        """Return the receipt of an assignment."""
        flag = _FREES_KEY if job.unique_seconds is None else _KEEPS_KEY
        return f"{flag}{self._signature(owner, job.claim, flag, job.correlation_id)}:{job.correlation_id}"

    def read(self, what: str, owner: WorkerId, claim: Claim, text: str) -> Receipt:
        """Return what a receipt says.

        Raises:
            PayloadError: it is not that of the owner's assignment.
        """
        signed, _, correlation_id = text.partition(":")
        flag = signed[:1]
        expected = flag + self._signature(owner, claim, flag, correlation_id)
        if not hmac.compare_digest(signed.encode(), expected.encode()):
            raise PayloadError(f"{what} has no receipt, or not that of its assignment. Copy it from there.")
        return Receipt(flag == _KEEPS_KEY, correlation_id)

    def _signature(self, owner: WorkerId, claim: Claim, flag: str, correlation_id: str) -> str:
        signed = f"{claim.id}:{claim.attempt}:{flag}:{len(owner)}:{owner}:{correlation_id}"
        digest = hmac.digest(self._key, signed.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return base64.urlsafe_b64encode(digest[:_SIGNATURE_BYTES]).decode()
