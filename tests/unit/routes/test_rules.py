"""What may be written as a rule, and what is said about the rest."""

from __future__ import annotations

from typing import Any

import pytest

from router_node.routes.rules import RouteError, Rule, Target, When, Words, encode, from_json, parse, to_plain


def rule(**more: Any) -> dict[str, Any]:
    return {"name": "a", "targets": "small", **more}


def test_short_forms_mean_the_long_ones() -> None:
    short = parse(
        {
            "name": "a",
            "when": {"model": "auto", "tenant": ["x", "y"], "headers": {"X-Team": {"prefix": "re"}}, "content": "foo"},
            "targets": ["small", {"pool": "large", "weight": 3}],
            "fallback": ["spare", {"route": "b"}],
        }
    )
    assert short.when.model == Words(exact=("auto",))
    assert short.when.tenant == Words(exact=("x", "y"))
    assert short.when.headers == {"x-team": Words(prefix=("re",))}
    assert short.when.content == ("foo",)
    assert [(t.pool, t.weight) for t in short.targets] == [("small", 1), ("large", 3)]
    assert [(f.pool, f.route) for f in short.fallback] == [("spare", ""), ("", "b")]


def test_a_rule_comes_back_from_json_and_from_plain_values() -> None:
    one = parse(
        rule(
            priority=-3,
            when={
                "model": {"glob": ["a*b"]},
                "headers": {"x": ["1", "2"]},
                "prompt_tokens": {"max": 9},
                "tools": False,
            },
            timeout=2.5,
            max_attempts=2,
            targets={"pool": "p@1", "model": "lora", "defaults": {"temperature": 0.5}, "clamps": {"n": {"max": 1}}},
        )
    )
    assert from_json(encode(one)) == one
    assert parse(to_plain(one)) == one


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ([], "keys and values"),
        ({"name": "a"}, "route 'a': object missing required field `targets`"),
        (rule(name="bad name"), "a name is 1 to 128"),
        (rule(name=7), "name: expected `str`"),
        (rule(targets=[]), "targets: name at least one pool"),
        (rule(targets=[{"pool": "x", "weight": 0}]), "every weight is 0"),
        (rule(targets=["x", "x"]), "names the same pool twice"),
        (rule(targets=[{"pool": ""}]), "names no pool"),
        (rule(targets=[{"pool": "x", "weight": -1}]), "targets[0].weight"),
        (rule(targets=[{"pool": "x", "defaults": {"tempratur": 1}}]), "no such parameter"),
        (rule(targets=[{"pool": "x", "defaults": {"top_k": 1.5}}]), "whole number"),
        (rule(targets=[{"pool": "x", "clamps": {"n": {}}}]), "needs min or max"),
        (rule(targets=[{"pool": "x", "clamps": {"n": {"min": 3, "max": 1}}}]), "min is above max"),
        (rule(fallback=[{"pool": "x", "route": "y"}]), "either a pool or a route"),
        (rule(fallback=[{"route": "y", "model": "z"}]), "brings its own model"),
        (rule(when={"model": []}), "when.model: lists nothing"),
        (rule(when={"model": {"prfix": "x"}}), "when.model: object contains unknown field `prfix`"),
        (rule(when={"prompt_tokens": {"min": 5, "max": 2}}), "can never match"),
        (rule(when={"priority": {}}), "needs min or max"),
        (rule(when={"headers": {"authorization": "x"}}), "carries secrets"),
        (rule(when={"headers": {"bad header": "x"}}), "no header name"),
        (rule(when={"tenant": "a\nb"}), "must be printable"),
        (rule(timeout=0), "timeout: must be"),
        (rule(max_attempts=0), "max_attempts: must be"),
        (rule(wieght=1), "unknown field `wieght`"),
    ],
)
def test_what_makes_no_sense_is_said_with_rule_and_key(tree: Any, said: str) -> None:
    with pytest.raises(RouteError) as caught:
        parse(tree)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_that_is_no_rule_is_refused() -> None:
    for raw in (b"", b"[]", b'{"name":"a"}', b'{"name":"a","targets":[{"pool":"x"}],"new_in_v9":1}', b"\xff"):
        with pytest.raises(RouteError):
            from_json(raw)


def test_a_rule_may_not_be_endless() -> None:
    words = Words(exact=tuple(f"{i:0200d}" for i in range(200)))
    big = Rule("a", (Target("p"),), when=When(model=words, tenant=words))
    with pytest.raises(RouteError, match="over 65536 bytes"):
        from_json(encode(big))
