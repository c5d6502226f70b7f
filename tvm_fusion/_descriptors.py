"""Waiting for descriptors of any number: ``select.select`` takes none from 1024 on."""

from __future__ import annotations

import selectors


def is_readable(descriptor: int, seconds: float | None) -> bool:
    """Wait until a descriptor has something to read, or its other end is closed.

    Parameters
    ----------
    descriptor : int
        Of a pipe or socket.
    seconds : float, optional
        How long to wait; without an end when omitted.

    Returns
    -------
    bool
        Whether it came to that within the time.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))
