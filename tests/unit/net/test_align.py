"""Whole frames only, however the network cuts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.net.align import SURELY_SMALL, WORDY_FRAME, FrameAligner
from shared.net.settings import MAX_FRAME

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(payload: bytes, kind: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + b"\0\0\0\1" + payload


def fed(pieces: list[bytes], skip: int = 0) -> tuple[list[bytes], FrameAligner]:
    got: list[bytes] = []
    aligner = FrameAligner(lambda piece: got.append(bytes(piece)), skip)
    for piece in pieces:
        aligner.feed(piece)
    return got, aligner


def chopped(data: bytes, cuts: list[int]) -> list[bytes]:
    at, out = 0, []
    for cut in cuts:
        if at >= len(data):
            break
        out.append(data[at : at + cut])
        at += cut
    if at < len(data):
        out.append(data[at:])
    return out


sizes = st.one_of(st.integers(0, 40), st.integers(0, MAX_FRAME), st.just(MAX_FRAME))
cuts = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 40_000)), max_size=400)


@given(lengths=st.lists(sizes, min_size=1, max_size=12), cuts=cuts, preface=st.booleans())
def test_pieces_end_where_frames_end_and_nothing_is_lost(lengths: list[int], cuts: list[int], preface: bool):
    head = PREFACE if preface else b""
    ends = {len(head)}
    data = head
    for i, length in enumerate(lengths):
        data += frame(bytes([i]) * length)
        ends.add(len(data))
    got, aligner = fed(chopped(data, cuts), len(head))
    assert b"".join(got) == data
    assert aligner.holding == 0
    at = 0
    for piece in got:
        assert piece
        at += len(piece)
        assert at in ends or at < len(head)


@given(length=sizes.filter(bool), cut=st.integers(1, MAX_FRAME + 8))
def test_an_unfinished_frame_is_held_back_whole(length: int, cut: int):
    data = frame(b"x" * length)
    cut = min(cut, len(data) - 1)
    got, aligner = fed([data[:cut]])
    assert got == []
    assert aligner.holding == cut
    aligner.feed(data[cut:])
    assert b"".join(got) == data


def test_whole_frames_in_front_of_an_unfinished_one_go_on():
    whole, half = frame(b"a" * 10), frame(b"b" * 10)
    got, aligner = fed([whole + half[:5], half[5:] + whole])
    assert got == [whole, half, whole]
    assert aligner.kept == 1


def test_bytes_that_come_one_by_one_make_the_same_frames():
    data = PREFACE + frame(b"") + frame(b"abc") + frame(b"z" * 300)
    got, _ = fed([data[i : i + 1] for i in range(len(data))], len(PREFACE))
    assert b"".join(got) == data


def test_a_frame_over_the_limit_is_passed_on_at_once_for_the_engine_to_refuse():
    header = (MAX_FRAME + 1).to_bytes(3, "big") + b"\0\0\0\0\0\1"
    assert fed([header + b"x"])[0] == [header + b"x"]
    got, aligner = fed([header[:4], header[4:]])
    assert got == [header]
    assert aligner.holding == 0


def test_never_more_than_a_frame_is_held():
    _, aligner = fed([frame(b"x" * MAX_FRAME)[:-1]])
    assert aligner.holding == MAX_FRAME + 8


def test_frames_with_much_header_text_are_noticed():
    small, large = frame(b"h" * WORDY_FRAME, 1, 4), frame(b"h" * (WORDY_FRAME + 1), 1, 4)
    for data, expected in ((small, False), (large, True), (frame(b"d" * 9000), False), (small * 3 + large, True)):
        aligner = fed([data])[1]
        assert aligner.wordy is expected
        aligner.feed(small)
        assert aligner.wordy is False
    halves = fed([large[:20], large[20:]])[1]
    assert halves.wordy is True


def test_a_header_block_that_goes_on_is_watched_from_then_on():
    aligner = fed([frame(b"h" * (WORDY_FRAME + 1), 1, 0)])[1]
    aligner.feed(frame(b"h", 9, 4))
    assert aligner.wordy is True


def test_what_counts_as_small_cannot_decode_to_more_than_64_kib():
    text = 17 * WORDY_FRAME * 8 // 5
    assert SURELY_SMALL * (4096 + 32) + text <= 64 << 10
