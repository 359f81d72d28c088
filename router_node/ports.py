"""The sockets of the public port where several workers share it: made, and kept, by their supervisor.

Each worker has sockets of its own (``SO_REUSEPORT``), between which the kernel shares out the connections. The
supervisor holds them too, so that it can leave them to its successor with every connection that waits in them.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from shared.net.bind import tcp_sockets


class Ports:
    """``of`` is asked for whenever a worker starts. ``inherited`` are the sockets of the router before."""

    def __init__(self, host: str, port: int, workers: int, inherited: Sequence[socket.socket] = ()) -> None:
        self._host = host
        self._port = port
        self._left = deal(inherited, workers)
        self._of: dict[int, list[socket.socket]] = {}

    async def of(self, worker: int) -> list[socket.socket]:
        """The sockets of a worker. Raises ListenError."""
        if worker not in self._of:
            left, self._left[worker] = self._left[worker], []
            self._of[worker], _ = await tcp_sockets(self._host, self._port, reuse_port=True, inherited=left)
        return self._of[worker]

    def lost(self, worker: int) -> None:
        """A worker has ended: nobody accepts from its sockets, so that connections must go to the others' now."""
        sockets = self._of.get(worker, [])
        if all(sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for sock in sockets):
            self._of.pop(worker, None)
            for sock in sockets:
                sock.close()

    @property
    def all(self) -> list[socket.socket]:
        """Every socket that listens."""
        return [sock for sockets in self._of.values() for sock in sockets]

    def close(self) -> None:
        """Let go of the sockets; the workers have their own hold on them."""
        for sock in (*self.all, *(sock for left in self._left for sock in left)):
            sock.close()
        self._of.clear()
        self._left = [[] for _ in self._left]


def deal(sockets: Sequence[socket.socket], workers: int) -> list[list[socket.socket]]:
    """Share sockets out: none may be without a worker, and workers beyond their number share one with others."""
    addresses: dict[Any, list[socket.socket]] = {}
    for sock in sockets:
        addresses.setdefault(sock.getsockname(), []).append(sock)
    dealt: list[list[socket.socket]] = [[] for _ in range(workers)]
    for some in addresses.values():
        for i, hand in enumerate(dealt):
            hand += some[i::workers] or [some[i % len(some)].dup()]
    return dealt


@contextlib.contextmanager
def hold_port(host: str, port: int, inherited: Sequence[socket.socket] = ()) -> Iterator[int]:
    """Bind the public port without listening: it stays ours while workers come and go. Yields its number.

    Raises OSError when someone listens there already, which SO_REUSEPORT alone would silently share; not for the
    router before, whose sockets are ``inherited``.
    """
    for sock in inherited:
        number = sock.getsockname()[1]
        if port in (0, number):
            yield number
            return
    family, kind, proto, _, address = socket.getaddrinfo(host or "::", port, type=socket.SOCK_STREAM)[0]
    try:
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        held = socket.socket(family, kind, proto)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "is in use by another process: stop it or choose another port."
        else:
            why = f"cannot be bound: {error.strerror}."
        raise OSError(f"server.port: {host}:{port} {why}") from None
    with held:
        yield held.getsockname()[1]
