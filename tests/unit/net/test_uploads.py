"""The longest pause of bodies that are arriving."""

from __future__ import annotations

from shared.net.uploads import SMALL_BODY, Uploads, crowded_error, stalled_error, upload_limit
from tests.support.h2_rig import ManualLoop


class Body:
    def __init__(self) -> None:
        self.stalls = 0
        self.crowded = 0

    def crowded_out(self) -> None:
        self.crowded += 1

    def stalled(self) -> None:
        self.stalls += 1


def make() -> tuple[ManualLoop, Uploads]:
    loop = ManualLoop()
    return loop, Uploads(loop, 10.0, 1000)  # type: ignore[arg-type]


def test_only_those_that_pause_too_long_are_told_and_once():
    loop, uploads = make()
    silent, steady, whole = Body(), Body(), Body()
    for body in (silent, steady, whole):
        uploads.progress(body, 1)
    uploads.end(whole)
    for _ in range(10):
        loop.advance(3)
        uploads.progress(steady, 1)
    assert (silent.stalls, steady.stalls, whole.stalls) == (1, 0, 0)
    assert len(uploads) == 1
    loop.advance(9.9)
    assert steady.stalls == 0
    loop.advance(0.2)
    assert (steady.stalls, len(uploads)) == (1, 0)
    uploads.progress(silent, 1)
    loop.advance(11)
    assert silent.stalls == 2


def test_closing_forgets_everybody():
    loop, uploads = make()
    body = Body()
    uploads.progress(body, 1)
    uploads.close()
    loop.advance(20)
    assert (body.stalls, len(uploads)) == (0, 0)


def test_the_largest_has_to_go_when_all_hold_too_much():
    _, uploads = make()
    small, large, newest = Body(), Body(), Body()
    uploads.progress(small, 100)
    uploads.progress(large, 500)
    uploads.progress(large, 800)
    assert uploads.held == 900
    uploads.progress(newest, 101)
    assert (small.crowded, large.crowded, newest.crowded) == (0, 1, 0)
    assert uploads.held == 201
    uploads.progress(newest, 901)
    assert newest.crowded == 1
    assert (uploads.held, len(uploads)) == (100, 1)
    uploads.end(small)
    uploads.end(small)
    assert uploads.held == 0


def test_room_is_made_for_more_than_the_one_byte_that_was_too_much():
    _, uploads = make()
    bodies = [Body() for _ in range(100)]
    for body in bodies:
        uploads.progress(body, 10)
    uploads.progress(bodies[0], 20)
    assert uploads.held <= 875
    assert bodies[0].crowded == 1
    assert sum(body.crowded for body in bodies) == 100 - len(uploads)


def test_a_whole_body_counts_until_it_is_let_go():
    loop = ManualLoop()
    uploads = Uploads(loop, 10.0, 1 << 20)  # type: ignore[arg-type]
    arriving = Body()
    assert uploads.keep(800_000)
    assert not uploads.keep(300_000)
    assert uploads.keep(SMALL_BODY)
    uploads.progress(arriving, 300_000)
    assert arriving.crowded == 1
    uploads.close()
    assert uploads.held == uploads.kept == 800_000 + SMALL_BODY
    uploads.let_go(800_000)
    uploads.let_go(SMALL_BODY)
    assert (uploads.held, uploads.kept) == (0, 0)


def test_small_bodies_are_kept_however_full_it_is():
    _, uploads = make()
    for _ in range(5):
        assert uploads.keep(600)
    assert uploads.held == 3000


def test_what_a_client_is_told_has_a_status_and_a_time_to_come_back():
    assert stalled_error().http_status == 408
    assert (crowded_error().http_status, crowded_error().retry_after) == (503, 1.0)
    assert upload_limit(1000) == 8000
