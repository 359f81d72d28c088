"""Fixtures that several tiers share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Tests start processes while gRPC runs in this one. Its fork handlers would stop its own threads in the middle of a
# call, or abort the child; a child that only executes another program needs none of them. Read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from shared import compiled
from tests.support.valkey import Valkey

# How long an example takes says more of what else runs on the machine than of the example.
settings.register_profile("laya", deadline=None)
settings.load_profile("laya")


def pytest_configure(config: pytest.Config) -> None:
    """Tests of extensions made from other sources than these would prove nothing."""
    if os.environ.get("LAYA_PLAIN", "") in ("", "0") and compiled.stale():
        pytest.exit(
            "The compiled hot path was made from other sources than these: run `make compile` to make it anew, "
            "or set LAYA_PLAIN=1 to test the sources alone.",
            returncode=4,
        )


def pytest_report_header(config: pytest.Config) -> str:
    """Which form of the hot path runs."""
    return f"hot path: {'compiled' if compiled.compiled() else 'plain Python'}"


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A real, empty Valkey server of this test alone."""
    server = Valkey()
    try:
        server.start()
        yield server
    finally:
        server.close()
