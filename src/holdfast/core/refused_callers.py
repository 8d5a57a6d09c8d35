"""Callers that are not let in: logged with their rate, in bounded lines and memory, never with what they presented."""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict

from .clock import Clock

WINDOW_SECONDS = 60
_MOST_ADDRESSES = 10_000
_LONGEST_NAME = 100


class RefusedCallers:
    """Counts refusals by address. The first of a minute is logged, then the 10th, the 100th and so on.

    Args:
        what: what they send, such as "request".
        log: where it is logged.
    """

    def __init__(self, what: str, log: logging.Logger, clock: Clock) -> None:
        self._what = what
        self._log = log
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def refused(self, address: str, why: str) -> None:
        """Note that something from an address was not let in."""
        count = self._counted(address)
        if str(count).rstrip("0") == "1":
            self._log.warning(
                "A %s from %s was refused: %s (%d from there within %d s).",
                self._what,
                address,
                why,
                count,
                WINDOW_SECONDS,
            )

    def _counted(self, address: str) -> int:
        now = self._clock.monotonic()
        since, count = self._counts.pop(address, (now, 0))
        if now - since >= WINDOW_SECONDS:
            since, count = now, 0
        self._counts[address] = (since, count + 1)
        if len(self._counts) > _MOST_ADDRESSES:
            self._counts.popitem(last=False)
        return count + 1


def why_refused(authorization: object) -> str:
    """Return why a caller is not known, by the header ``Authorization`` that it sent, if any."""
    return "it has no token" if authorization is None else "its token is not accepted"


def address_to_count(host: str) -> str:
    """Return what callers from a host are counted by: of an IPv6 address the network, which one of them may own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:_LONGEST_NAME]
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)
