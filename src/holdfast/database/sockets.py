"""Ending a connection that another thread is waiting for."""

from __future__ import annotations

import os
import socket


def cut_off(descriptor: int) -> None:
    """Have whoever waits on a socket get its end, by a descriptor of our own: that one is not closed under its hands.

    Raises:
        OSError: it is closed already.
    """
    with socket.socket(fileno=os.dup(descriptor)) as own:
        own.shutdown(socket.SHUT_RDWR)
