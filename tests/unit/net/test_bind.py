"""Which sockets listen for which host."""

from __future__ import annotations

import socket

import pytest

from shared.net.bind import tcp_sockets


@pytest.mark.parametrize("host", ["", "::"])
async def test_every_address_is_both_families(host: str) -> None:
    sockets, port = await tcp_sockets(host, 0)
    try:
        assert {s.getsockname()[1] for s in sockets} == {port}
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        if socket.AF_INET6 in {s.family for s in sockets}:
            with socket.create_connection(("::1", port), timeout=5):
                pass
        # An inherited pair is taken over as it is.
        again, _ = await tcp_sockets(host, port, inherited=sockets)
        assert set(again) == set(sockets)
    finally:
        for sock in sockets:
            sock.close()
