"""The network layer is tested on the event loop it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in both processes."""
    return {"uvloop": uvloop.new_event_loop}
