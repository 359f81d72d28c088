"""What several modules of this tier begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.rogue_node import RogueNode


@pytest.fixture
async def rogue() -> AsyncIterator[RogueNode]:
    """A node that answers as the test says."""
    node = await RogueNode().start()
    try:
        yield node
    finally:
        await node.stop()


@pytest.fixture
async def honest() -> AsyncIterator[RogueNode]:
    """A node of another model, ``good``, for a client that must not notice."""
    node = await RogueNode("honest", "good").start()
    try:
        yield node
    finally:
        await node.stop()
