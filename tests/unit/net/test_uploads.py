"""The longest pause of bodies that are arriving."""

from __future__ import annotations

from shared.net.uploads import Uploads
from tests.support.h2_rig import ManualLoop


class Body:
    def __init__(self) -> None:
        self.stalls = 0

    def stalled(self) -> None:
        self.stalls += 1


def make() -> tuple[ManualLoop, Uploads]:
    loop = ManualLoop()
    return loop, Uploads(loop, 10.0)  # type: ignore[arg-type]


def test_only_those_that_pause_too_long_are_told_and_once():
    loop, uploads = make()
    silent, steady, whole = Body(), Body(), Body()
    for body in (silent, steady, whole):
        uploads.progress(body)
    uploads.end(whole)
    for _ in range(10):
        loop.advance(3)
        uploads.progress(steady)
    assert (silent.stalls, steady.stalls, whole.stalls) == (1, 0, 0)
    assert len(uploads) == 1
    loop.advance(9.9)
    assert steady.stalls == 0
    loop.advance(0.2)
    assert (steady.stalls, len(uploads)) == (1, 0)
    uploads.progress(silent)
    loop.advance(11)
    assert silent.stalls == 2


def test_closing_forgets_everybody():
    loop, uploads = make()
    body = Body()
    uploads.progress(body)
    uploads.close()
    loop.advance(20)
    assert (body.stalls, len(uploads)) == (0, 0)
