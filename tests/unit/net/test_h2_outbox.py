"""What waits to be framed: in order, in turns, within windows, and gone when its stream is."""

from __future__ import annotations

from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from shared.net.h2_outbox import Outbox, Outgoing
from tests.support.h2_rig import REQUEST, TRAILERS


class Box:
    """An outbox of a client."""

    def __init__(self) -> None:
        self.h2 = H2Connection()
        self.h2.initiate_connection()
        self.h2.data_to_send()
        self.outbox = Outbox(self.h2)
        self.ids = 1

    def ask(self, *parts: bytes, end: bool = False) -> Outgoing:
        stream = Outgoing(self.ids, opened=False)
        self.ids += 2
        stream.head = REQUEST
        self.outbox.open(stream)
        for part in parts:
            self.put(stream, part)
        stream.ended = end
        return stream

    def put(self, stream: Outgoing, data: bytes) -> None:
        stream.chunks.append(data)
        stream.size += len(data)
        self.outbox.total += len(data)
        self.outbox.due(stream)

    def frames(self) -> list[tuple[int, int, int]]:
        """Type, stream and length of what can be framed."""
        while self.outbox.frame() is not None:
            pass
        data = self.h2.data_to_send()
        out, at = [], 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 3], "big")
            out.append((data[at + 3], int.from_bytes(data[at + 5 : at + 9], "big"), length))
            at += 9 + length
        return out


def test_header_blocks_leave_in_order_and_bodies_take_turns():
    box = Box()
    box.ask(b"a" * 20_000, end=True)
    box.ask(b"b" * 20_000, end=True)
    assert [frame[:2] for frame in box.frames()] == [(1, 1), (1, 3), (0, 1), (0, 3), (0, 1), (0, 3)]
    assert box.outbox.total == 0
    assert not box.outbox.ready


def test_small_pieces_share_a_frame():
    box = Box()
    box.ask(*[b"x" * 100] * 50, end=True)
    assert box.frames()[1:] == [(0, 1, 5000)]


def test_a_shut_stream_waits_and_does_not_stop_the_others():
    box = Box()
    first = box.ask(b"a" * 65_535)
    box.frames()
    box.h2.outbound_flow_control_window = 1 << 20
    box.put(first, b"more")
    box.ask(b"b", end=True)
    assert [frame[:2] for frame in box.frames()] == [(1, 3), (0, 3)]
    assert not box.outbox.ready
    assert box.outbox.total == 4
    box.h2.streams[1].outbound_flow_control_window = 10
    box.outbox.unstall(1)
    assert box.frames() == [(0, 1, 4)]


def test_a_shut_connection_stops_bodies_only():
    box = Box()
    box.h2.outbound_flow_control_window = 0
    box.ask(b"a")
    empty = box.ask()
    empty.trailers, empty.ended = TRAILERS, True
    box.outbox.due(empty)
    assert [frame[:2] for frame in box.frames()] == [(1, 1), (1, 3), (1, 3)]
    assert empty.framed_end
    assert not box.outbox.ready


def test_requests_beyond_the_peers_limit_wait_for_room():
    box = Box()
    box.h2.remote_settings.max_concurrent_streams = 1
    box.h2.remote_settings.acknowledge()
    first, second = box.ask(end=True), box.ask(end=True)
    box.frames()
    assert (first.opened, second.opened) == (True, False)
    assert box.outbox.unopened() == [second]
    assert not box.outbox.ready


def test_a_forgotten_stream_leaves_nothing():
    box = Box()
    kept = box.ask(b"a" * 70_000)
    box.frames()
    gone = box.ask(b"b" * 100)
    box.outbox.forget(gone)
    assert box.outbox.total == kept.size == 70_000 - 65_535
    assert box.frames() == []
    box.outbox.forget(kept)
    box.h2.outbound_flow_control_window = 1 << 20
    box.outbox.unstall_all()
    assert box.frames() == []
    assert box.outbox.total == 0


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1), st.lists(st.integers(1, 50), min_size=1))
def test_cutting_keeps_every_byte_in_order(chunks: list[bytes], sizes: list[int]):
    stream = Outgoing(1, opened=True)
    stream.chunks.extend(chunks)
    stream.size = sum(map(len, chunks))
    out = b""
    for i in range(10_000):
        if not stream.size:
            break
        most = sizes[i % len(sizes)]
        piece = stream.cut(most)
        assert 0 < len(piece) <= most
        assert len(piece) == most or not stream.size
        out += piece
    assert out == b"".join(chunks)
    assert not stream.chunks
