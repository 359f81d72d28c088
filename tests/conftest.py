"""Fixtures that several tiers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
