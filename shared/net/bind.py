"""Sockets that listen: on every address of a host, on a Unix path, or taken over from whoever listened before."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Sequence
from typing import Any, Final

BACKLOG: Final = 1024
# A peer that vanished without a word is found by the kernel: seconds of silence, between probes, and probes.
_PROBES: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class ListenError(Exception):
    """An address that cannot be listened on: one sentence with the address and what to do."""


async def tcp_sockets(
    host: str, port: int, *, reuse_port: bool = False, inherited: Sequence[socket.socket] = ()
) -> tuple[list[socket.socket], int]:
    """Sockets that listen on each address of ``host`` (``localhost`` may have two), all on one port, and that port.

    ``::`` is every address, those of IPv4 too: pods of a dual-stack cluster are asked over either.

    Those of ``inherited`` that listen there already are taken; the rest of them are closed. Port 0 takes any, and
    that of the inherited ones where there are some. Raises ListenError.
    """
    loop = asyncio.get_running_loop()
    name = None if host in ("", "::") else host
    try:
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"{host} is not an address of this machine ({error.strerror}).") from None
    addresses = list(dict.fromkeys(found))
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in addresses:
            taken = [sock for sock in inherited if _listens_on(sock, family, str(address[0]), port)]
            if taken:
                sockets += taken
                port = taken[0].getsockname()[1]
                continue
            try:
                sock = _bound(family, kind, protocol, (address[0], port, *address[2:]), reuse_port)
            except OSError as error:
                # A name may stand for an address family that this machine does not have.
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(addresses) > 1:
                    continue
                raise ListenError(_sentence(error, shown(host, port))) from None
            sockets.append(sock)
            port = sock.getsockname()[1]
        if not sockets:
            raise ListenError(f"{host} is not an address of this machine: bind another one.")
    except ListenError:
        for sock in sockets:
            sock.close()
        raise
    for sock in inherited:
        if sock in sockets:
            _prepare(sock)
        else:
            sock.close()
    return sockets, port


def unix_socket(path: str) -> socket.socket:
    """A bound socket that only our own user may connect to; a file that a dead process left behind makes way.

    Raises ListenError.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        _clear_stale(path)
        sock.setblocking(False)
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(_sentence(error, f"unix:{path}")) from None
    except ListenError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def shown(host: str, port: int) -> str:
    """host:port, [v6]:port."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"


def _listens_on(sock: socket.socket, family: int, host: str, port: int) -> bool:
    name: Any = sock.getsockname()
    return sock.family == family and name[0] == host and port in (0, name[1])


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...], reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _prepare(sock)
        sock.bind(address)
        # Now rather than in the event loop: a taken port may show only here.
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _prepare(sock: socket.socket) -> None:
    """What accepted sockets inherit."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _clear_stale(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is not a socket: choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ListenError(f"unix:{path} is in use by another process: stop it or choose another path.")


def _sentence(error: OSError, address: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use by another process: stop it or choose another port."
    if error.errno == errno.EACCES:
        return f"{address} may not be bound by this user: choose a port from 1024 up, or a path you may write."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this machine: bind one that is, or 127.0.0.1."
    return f"{address} cannot be listened on: {error.strerror}."
