"""The sockets of workers that share a port."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.ports import Ports, deal, hold_port
from shared.net.bind import tcp_sockets


@pytest.fixture
def ports() -> Iterator[Ports]:
    with hold_port("127.0.0.1", 0) as port:
        made = Ports("127.0.0.1", port, 2)
        yield made
        made.close()


async def test_each_worker_has_sockets_of_its_own_on_one_port(ports: Ports) -> None:
    (one,), (two,) = await ports.of(0), await ports.of(1)
    assert one is not two and one.getsockname() == two.getsockname()
    assert await ports.of(0) == [one]
    assert ports.all == [one, two]


async def test_those_of_a_worker_that_has_ended_are_closed_and_made_anew(ports: Ports) -> None:
    (one,) = await ports.of(0)
    ports.lost(0)
    assert one.fileno() == -1
    (again,) = await ports.of(0)
    assert again.fileno() != -1


async def test_a_socket_that_cannot_be_made_anew_is_kept() -> None:
    left, port = await tcp_sockets("127.0.0.1", 0)  # of a router without workers: not shared
    with hold_port("127.0.0.1", port, left) as held:
        ports = Ports("127.0.0.1", held, 2, left)
        (one,) = await ports.of(0)
        ports.lost(0)
        assert one.fileno() != -1 and await ports.of(0) == [one]
        ports.close()
        assert one.fileno() == -1


def test_a_port_that_somebody_listens_on_is_not_held() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"), hold_port("127.0.0.1", other.getsockname()[1]):
            pass


@given(st.integers(1, 6), st.integers(1, 6))
def test_no_socket_is_without_a_worker_and_no_worker_without_a_socket(sockets: int, workers: int) -> None:
    given_out = []
    for _ in range(sockets):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(given_out[0].getsockname() if given_out else ("127.0.0.1", 0))
        given_out.append(sock)
    dealt = deal(given_out, workers)
    try:
        assert len(dealt) == workers and all(dealt)
        flat = [sock for hand in dealt for sock in hand]
        assert all(sock in flat for sock in given_out)
        assert len(flat) == max(sockets, workers)
    finally:
        for sock in (*given_out, *(sock for hand in dealt for sock in hand)):
            sock.close()
