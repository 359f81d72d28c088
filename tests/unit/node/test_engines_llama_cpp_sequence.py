"""One completion of llama_cpp: when it ends and what of it is text."""

from __future__ import annotations

from typing import Any

from inference_node.engines.base import Delta, Finished, GenerateCall, Prompt, Sampling
from inference_node.engines.llama_cpp_sequence import LlamaRequest, LlamaSequence

END = 0


class Letters:
    """Token n is the letter chr(n); 0 ends and is shown as a mark."""

    ends = frozenset((END,))

    def piece(self, token: int, special: bool) -> bytes:
        return (b"<end>" if special else b"") if token == END else bytes([token])


def sequence(grammar: str = "", limit: int = 100, **sampling: Any) -> LlamaSequence:
    call = GenerateCall("r", Prompt([65, 66]), Sampling(**{"max_tokens": 50, **sampling}))
    return LlamaRequest(call, grammar, Letters(), limit).sequences[0]


def feed(found: LlamaSequence, tokens: bytes) -> tuple[str, Delta]:
    text, delta = "", Delta()
    for token in tokens:
        delta = found.add(token)
        text += delta.text
        if found.finish:
            break
    return text, delta


def test_the_end_token_ends_and_is_no_text() -> None:
    text, last = feed(sequence(), b"xy\0z")
    assert (text, last.finish_reason, list(last.token_ids)) == ("xy", "stop", [END])
    assert feed(sequence(skip_special_tokens=False), b"xy\0")[0] == "xy<end>"


def test_ignore_eos_goes_on_but_a_grammar_has_its_end() -> None:
    assert feed(sequence(ignore_eos=True), b"x\0y")[1].finish_reason == ""
    assert feed(sequence("root ::= x", ignore_eos=True), b"x\0y")[1].finish_reason == "stop"


def test_length_ends_it_by_max_tokens_or_by_the_context() -> None:
    assert feed(sequence(max_tokens=3), b"abcdef") == ("abc", Delta(0, "c", (99,), (), "length"))
    assert feed(sequence(limit=4), b"abcdef")[0] == "ab"


def test_a_stop_token_names_itself_and_a_stop_string_too() -> None:
    text, last = feed(sequence(stop_token_ids=[98]), b"abc")
    assert (text, last.finish_reason, last.stop_reason) == ("a", "stop", "98")
    text, last = feed(sequence(stop=["bc"]), b"abcd")
    assert (text, last.finish_reason, last.stop_reason) == ("a", "stop", "bc")


def test_before_min_tokens_it_is_closed() -> None:
    found = sequence(min_tokens=2)
    assert found.closed
    feed(found, b"a")
    assert found.closed
    feed(found, b"b")
    assert not found.closed


def test_where_no_token_is_possible_it_ends() -> None:
    found = sequence()
    assert found.add(-1) == Delta(0, "", (), (), "stop")


def test_it_tells_how_long_it_became() -> None:
    found = sequence(max_tokens=9)
    feed(found, b"abc\0")
    assert found.finished() == Finished(2, 9, 4)


def test_n_completions_are_set_apart_by_their_index() -> None:
    call = GenerateCall("r", Prompt([65]), Sampling(max_tokens=1, n=3))
    request = LlamaRequest(call, "", Letters(), 9)
    assert [s.add(66).index for s in request.sequences] == [0, 1, 2] and request.live == 3
