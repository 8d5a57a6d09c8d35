"""Ending a connection that another thread is waiting for, and noticing one whose peer is gone."""

from __future__ import annotations

import os
import socket

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}


def cut_off(descriptor: int) -> None:
    """Have whoever waits on a socket get its end, by a descriptor of our own: that one is not closed under its hands.

    Raises:
        OSError: it is closed already.
    """
    with socket.socket(fileno=os.dup(descriptor)) as own:
        own.shutdown(socket.SHUT_RDWR)


def notice_silence(connection: object) -> None:
    """Have the system ask a peer that is silent whether it is there, for a driver that cannot be told to."""
    own = getattr(connection, "_sock", None)
    if not isinstance(own, socket.socket) or own.family == getattr(socket, "AF_UNIX", None):
        return
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
