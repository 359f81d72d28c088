"""The network layer is tested on the event loop it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.support.h2_rig import UnderTest


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in both processes."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module", params=["ngh2", "h2"])
def engine_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module's tests once with each HTTP/2 engine behind its connections."""
    UnderTest.engine = str(request.param)
    try:
        yield UnderTest.engine
    finally:
        UnderTest.engine = "ngh2"
