"""Bytes of tokens in, whole characters out, and nothing of a stop string before it is sure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines.llama_cpp_text import TextOut


def run(text: TextOut, pieces: list[bytes]) -> tuple[str, str]:
    out = ""
    for piece in pieces:
        stop = text.feed(piece, True)
        out += text.take()
        if stop:
            return out, stop
    text.end()
    return out + text.take(), ""


def test_half_a_character_waits_for_its_other_half() -> None:
    text = TextOut()
    text.feed(b"a\xe2\x82", True)
    assert text.take() == "a"
    text.feed(b"\xac", True)
    assert text.take() == "€"


def test_what_may_become_a_stop_string_is_held_back() -> None:
    text = TextOut(["STOP"])
    assert text.feed(b"abST", True) == "" and text.take() == "a"
    assert text.feed(b"x", True) == "" and text.take() == "b"
    assert text.feed(b"STOPmore", True) == "STOP"
    assert text.take() == "STx"


def test_the_first_of_several_stops_wins_and_may_be_included() -> None:
    assert run(TextOut(["cd", "b"]), [b"abcd"]) == ("a", "b")
    assert run(TextOut(["cd"], include=True), [b"abcde"]) == ("abcd", "cd")


def test_before_the_least_tokens_no_stop_counts() -> None:
    text = TextOut(["a"])
    assert text.feed(b"a", False) == ""
    assert text.feed(b"b", True) == ""


@given(st.text(min_size=1, max_size=40), st.lists(st.text(min_size=1, max_size=3), max_size=3), st.data())
def test_however_it_is_cut_the_text_is_the_same(whole: str, stops: list[str], data: st.DataObject) -> None:
    raw = whole.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    out, stop = run(TextOut(stops), pieces)
    if stop:
        assert whole.startswith(out + stop) and stop in stops
    else:
        assert out == whole and not any(s in whole for s in stops)
