"""How many bytes a peer has not taken, by real sockets."""

from __future__ import annotations

import socket
from typing import Any, cast

from shared.net.untaken import untaken


class Sender:
    """As much of a transport as is asked: ``kept`` bytes of its own, and a socket."""

    def __init__(self, kept: int, sock: socket.socket | None) -> None:
        self._kept = kept
        self._sock = sock

    def get_write_buffer_size(self) -> int:
        return self._kept

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name == "socket"
        return self._sock


def left(kept: int, sock: socket.socket | None) -> int:
    return untaken(cast(Any, Sender(kept, sock)))


def test_bytes_of_the_transport_and_of_the_kernel_are_added():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as theirs:
        ours, _ = server.accept()
        with ours:
            ours.setblocking(False)
            sent = 0
            try:
                while True:
                    sent += ours.send(b"x" * 65536)
            except BlockingIOError:
                pass
            before = left(1000, ours)
            assert 1000 < before <= 1000 + sent
            taken = 0
            while taken < sent:
                taken += len(theirs.recv(1 << 20))
            assert left(0, ours) < before - 1000


def test_a_socket_that_is_closed_or_none_leaves_what_the_transport_says():
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.close()
    assert left(7, ours) == 7
    assert left(9, None) == 9
