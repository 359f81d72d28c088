"""Traces as requests: prefixes that are really shared, and what is done with what cannot be sent as it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference_node.engines.sim_text import encode
from loadtest.make_trace import rows
from loadtest.sim.mooncake import BadTrace
from loadtest.traces import mooncake
from loadtest.traces.items import Item, Loaded, Rules
from loadtest.traces.read import read
from loadtest.users.call import Call, Outcome
from loadtest.users.text import block, prompt, words

GOOD = {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [7, 8, 9]}


def load(*found: Any, **rules: Any) -> Loaded:
    return mooncake.items([r if isinstance(r, str) else json.dumps(r) for r in found], "t", Rules(**rules))


def first(item: Item) -> Call:
    return next(item.play())


def talks(tmp_path: Path, *found: Any, lines: bool = False, **rules: Any) -> Loaded:
    path = tmp_path / "talks.json"
    path.write_text("\n".join(map(json.dumps, found)) if lines else json.dumps(found))
    return read(path, Rules(**rules))


def talk(*turns: str, **more: Any) -> dict[str, Any]:
    who = ("human", "gpt")
    return {"conversations": [{"from": who[i % 2], "value": text} for i, text in enumerate(turns)], **more}


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 3000])
def test_text_has_the_tokens_it_should(count: int) -> None:
    assert len(encode(words("x", count))) == count
    assert len(encode(prompt([1, 2], count, "own"))) == count


def test_a_block_id_is_the_same_text_wherever_it_stands() -> None:
    one, two = (first(item).prompt for item in load(GOOD, {**GOOD, "hash_ids": [7, 8, 10], "input_length": 1500}).items)
    head = f"{block(7)} {block(8)}"
    assert one.startswith(head) and two.startswith(head)
    assert one[len(head) :][:100] != two[len(head) :][:100]


def test_what_has_no_block_id_is_shared_with_nobody() -> None:
    one, two = (first(item).prompt for item in load({**GOOD, "hash_ids": [7]}, {**GOOD, "hash_ids": [7]}).items)
    assert one[: len(block(7))] == two[: len(block(7))] and one != two
    assert first(load({**GOOD, "hash_ids": [7]}).items[0]).prompt == one  # and it is the same in every run


def test_answers_have_their_length_and_times_the_speed() -> None:
    loaded = load({**GOOD, "timestamp": 5000}, {**GOOD, "timestamp": 9000}, speed=4.0)
    assert [item.at for item in loaded.items] == [0.0, 1.0]
    call = first(loaded.items[0])
    assert (call.max_tokens, call.ignore_eos) == (5, True)


def test_reusable_tokens_are_those_of_blocks_seen_before() -> None:
    same = load(GOOD, GOOD)
    assert same.reusable() == pytest.approx(0.5)
    assert load(GOOD, {**GOOD, "hash_ids": [1, 8, 9]}).reusable() == 0.0  # a block counts with all before it


@pytest.mark.parametrize(
    "row", ["{", {**GOOD, "timestamp": -1}, {**GOOD, "input_length": 1 << 40}, {"timestamp": 0, "output_length": 1}]
)
def test_a_malformed_line_is_refused_or_left_out_and_said(row: Any) -> None:
    with pytest.raises(BadTrace, match=r"^t, line 2: .*--lenient"):
        load(GOOD, row)
    loaded = load(GOOD, row, GOOD, lenient=True)
    assert len(loaded.items) == 2 and loaded.notes.told()[0].startswith("t, line 2: ")
    assert loaded.notes.counts == {"malformed": 1}


def test_time_that_goes_back_is_refused_or_mended() -> None:
    back = ({**GOOD, "timestamp": 9000}, {**GOOD, "timestamp": 5000}, {**GOOD, "timestamp": 10_000})
    with pytest.raises(BadTrace, match="line 2: timestamp 5000 is earlier"):
        load(*back)
    assert [item.at for item in load(*back, lenient=True).items] == [0.0, 0.0, 1.0]


def test_holes_are_shortened_and_said() -> None:
    loaded = load(GOOD, {**GOOD, "timestamp": 3_600_000}, {**GOOD, "timestamp": 3_601_000}, longest_gap=10.0)
    assert [item.at for item in loaded.items] == [0.0, 10.0, 11.0]
    assert loaded.notes.told() == ["t, line 2: 3600 s without a request cut to 10 s (--longest-gap)"]


def test_what_is_longer_than_the_context_is_cut_and_said() -> None:
    loaded = load({**GOOD, "input_length": 90_000, "output_length": 5000}, GOOD, context=4096)
    call = first(loaded.items[0])
    assert len(encode(call.prompt)) + call.max_tokens <= 4096 and call.max_tokens == 1024
    assert [line.split(":")[1].split()[0] for line in loaded.notes.told()] == ["input_length", "output_length"]
    assert load(*[{**GOOD, "input_length": 9000}] * 15, context=4096).notes.told()[-1].endswith("15 in all")


def test_only_so_many_are_sent_and_none_is_an_error() -> None:
    loaded = load(GOOD, GOOD, GOOD, count=2)
    assert len(loaded.items) == 2 and "first 2 requests" in loaded.notes.told()[0]
    with pytest.raises(BadTrace, match="no request in it"):
        load("", "")


def test_a_conversation_is_asked_turn_by_turn_with_the_answers_given_now(tmp_path: Path) -> None:
    for lines in (False, True):
        loaded = talks(tmp_path, talk("one", "1234" * 6, "two", "12345678"), lines=lines)
        scenario = loaded.items[0].play()
        call = next(scenario)
        assert (call.messages, call.max_tokens, call.ignore_eos) == ((("user", "one"),), 6, True)
        second = scenario.send(Outcome(text="now", tokens=6))
        assert second.messages == (("user", "one"), ("assistant", "now"), ("user", "two"))
        assert second.session == call.session and second.session and second.pause > 0
        with pytest.raises(StopIteration):
            scenario.send(Outcome(tokens=2))


def test_a_conversation_ends_with_the_turn_that_fails(tmp_path: Path) -> None:
    scenario = talks(tmp_path, talk("one", "1", "two")).items[0].play()
    next(scenario)
    with pytest.raises(StopIteration):
        scenario.send(Outcome(reason="NODE_LOST"))


def test_conversations_begin_at_their_times_or_at_a_rate(tmp_path: Path) -> None:
    timed = talks(tmp_path, talk("a", timestamp=1000), talk("b", timestamp=3000), speed=2.0)
    assert [item.at for item in timed.items] == [0.0, 1.0]
    rated = talks(tmp_path, *[talk("a")] * 400, rate=20.0)
    assert rated.seconds == pytest.approx(20.0, rel=0.2)
    assert [i.at for i in rated.items] == [i.at for i in talks(tmp_path, *[talk("a")] * 400, rate=20.0).items]


def test_openai_messages_and_answers_before_a_question_are_understood(tmp_path: Path) -> None:
    spoken = [{"role": r, "content": r} for r in ("assistant", "system", "user")]
    call = first(talks(tmp_path, {"messages": spoken}).items[0])
    assert call.messages == (("system", "system"), ("user", "user")) and not call.ignore_eos


@pytest.mark.parametrize("row", [3, {}, talk(), talk("a", timestamp=-1), {"messages": [{"role": "x", "content": "y"}]}])
def test_a_malformed_conversation_is_refused_or_left_out(tmp_path: Path, row: Any) -> None:
    with pytest.raises(BadTrace, match="entry 2: "):
        talks(tmp_path, talk("a"), row)
    assert len(talks(tmp_path, talk("a"), row, lenient=True).items) == 1


def test_a_conversation_longer_than_the_context_is_cut(tmp_path: Path) -> None:
    loaded = talks(tmp_path, talk("a" * 400, "b" * 400, "c" * 4000), talk("d" * 9000), context=512)
    for item in loaded.items:
        assert first(item).size < 512 * 4
    assert "cut to 2 of 3 turns" in loaded.notes.told()[0]


@pytest.mark.parametrize("kind", ["azure", "heavy", "mooncake", "shared", "sharegpt"])
def test_a_made_trace_can_be_read_and_is_the_same_again(kind: str) -> None:
    made = list(rows(kind, 200, 5.0, 1.0, 16_384, 3))
    assert made == list(rows(kind, 200, 5.0, 1.0, 16_384, 3)) != list(rows(kind, 200, 5.0, 1.0, 16_384, 4))
    loaded = load(*made)
    assert len(loaded.items) == 200 and not loaded.notes.told()
    assert loaded.seconds == pytest.approx(40.0, rel=0.3)
    if kind in ("mooncake", "shared"):
        assert loaded.reusable() > 0.15


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"messages": []}\n' + "[" * 100_000])
@pytest.mark.parametrize("lenient", [False, True])
def test_what_is_nested_without_end_is_no_json(tmp_path: Path, text: str, lenient: bool) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text(text)
    with pytest.raises(BadTrace, match=r"there is no (request|conversation)" if lenient and text[0] == "{" else "deep"):
        read(path, Rules(lenient=lenient))
