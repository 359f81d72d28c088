"""Fixtures of the tests with a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in the node."""
    return {"uvloop": uvloop.new_event_loop}
