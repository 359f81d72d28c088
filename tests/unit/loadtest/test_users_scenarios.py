"""What users do: turns that grow, lengths that fit, weights that hold."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from loadtest.users.call import Call, Outcome
from loadtest.users.scenarios import SCENARIOS, BadMix, Mix, Scenario, Sizes, keys_of


def play(scenario: Scenario, out: Outcome | None = None) -> list[Call]:
    calls = []
    try:
        call = next(scenario)
        while True:
            calls.append(call)
            call = scenario.send(out or Outcome(text=f"answer {len(calls)}", tokens=2))
    except StopIteration:
        return calls


def test_each_turn_of_a_chat_holds_all_before_it_in_one_session() -> None:
    calls = play(SCENARIOS["chat"](random.Random(1), Sizes()))
    assert len(calls) >= 2 and len({call.session for call in calls}) == 1 and calls[0].session
    for number, (one, after) in enumerate(itertools.pairwise(calls), 1):
        assert after.messages[: len(one.messages) + 1] == (*one.messages, ("assistant", f"answer {number}"))
        assert after.pause > 0 and one.keep_text


def test_a_chat_ends_with_the_turn_that_fails() -> None:
    assert len(play(SCENARIOS["chat"](random.Random(1), Sizes()), Outcome(reason="QUEUE_FULL"))) == 1


def test_conversations_share_a_few_beginnings() -> None:
    heads = {play(SCENARIOS["chat"](random.Random(i), Sizes()))[0].messages[0] for i in range(60)}
    assert 1 < len(heads) <= 8


@pytest.mark.parametrize("name", SCENARIOS)
def test_prompt_and_answer_fit_a_small_context(name: str) -> None:
    sizes = Sizes(context=600)
    for seed in range(20):
        for call in play(SCENARIOS[name](random.Random(seed), sizes)):
            assert call.size / 3 + call.max_tokens <= 600
            assert call.leave_after <= call.max_tokens


def test_extraction_asks_for_a_schema_only_where_the_engine_has_that() -> None:
    [plain] = play(SCENARIOS["extract"](random.Random(1), Sizes()))
    [strict] = play(SCENARIOS["extract"](random.Random(1), Sizes(schema=True)))
    assert plain.schema == "" and json.loads(strict.schema)["required"] == ["name", "city", "total"]


def test_a_mix_draws_by_weight_and_gives_a_scenario_one_priority_and_key() -> None:
    mix = Mix("cancel=3,slow=1", "0=1,-5=1", ["a", "b"])
    rng = random.Random(3)
    calls = [play(mix.draw(rng, Sizes(), mix.key(n), n)) for n in range(400)]
    names = [call.name for [call] in calls]
    assert 240 < names.count("cancel") < 360 and set(names) == {"cancel", "slow"}
    assert {call.priority for [call] in calls} == {0, -5}
    assert [call.key for [call] in calls[:4]] == ["a", "b", "a", "b"]
    assert [call.lane for [call] in calls[:3]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("scenarios", "priorities", "said"),
    [
        ("dance", "0", "there is no 'dance'"),
        ("chat=x", "0", "no name=weight"),
        ("chat=-1", "0", "no name=weight"),
        ("chat=0", "0", "nothing with a weight"),
        ("", "0", "nothing with a weight"),
        ("chat", "high=2", "no list of whole numbers"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(scenarios: str, priorities: str, said: str) -> None:
    with pytest.raises(BadMix, match=said):
        Mix(scenarios, priorities)


def test_keys_are_read_one_a_line_and_never_shown() -> None:
    assert keys_of(["# ours", "", " laya-a ", "laya-b"]) == ["laya-a", "laya-b"]
    with pytest.raises(BadMix) as e:
        keys_of(["laya-a", "two words"])
    assert "key 2" in str(e.value) and "two words" not in str(e.value)
