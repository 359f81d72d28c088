"""Free ports and waiting on conditions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(condition: Callable[[], object], what: str, timeout: float = 10.0) -> None:
    """Return once ``condition()`` is true; fail, naming ``what``, when it is not within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.005)


def within(seconds: float, condition: Callable[[], object], what: str, more: Callable[[], str] = str) -> None:
    """As ``until``, for what is slow and without an event loop; a refused connection is not yet. ``more`` tells why."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{more()}"
        time.sleep(0.2)


async def eventually(condition: Callable[[], Awaitable[object]], what: str, timeout: float = 10.0) -> None:
    """As ``until``, for a condition that must be awaited."""
    deadline = time.monotonic() + timeout
    while not await condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.02)
