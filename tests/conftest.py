"""Fixtures that several tiers share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Tests start processes while gRPC runs in this one. Its fork handlers would stop its own threads in the middle of a
# call, or abort the child; a child that only executes another program needs none of them. Read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from tests.support.valkey import Valkey


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A real, empty Valkey server of this test alone."""
    server = Valkey()
    try:
        server.start()
        yield server
    finally:
        server.close()
