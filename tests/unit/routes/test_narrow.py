"""Of many rules only those are asked that a request leaves; that the right one is found is shown for the matcher."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from router_node.routes.bucket import FEW
from router_node.routes.conditions import Conditions
from router_node.routes.facts import Facts, Shape
from router_node.routes.matcher import Matcher
from router_node.routes.rules import Rule, Span, Target, When, Words

COUNT = 1000


def conditions(when: Callable[[int], When]) -> Matcher:
    rules = [Rule(f"r{i:04d}", (Target("p"),), when=when(i)) for i in range(COUNT)]
    return Matcher({rule.name: Conditions(rule) for rule in rules})


def tenant(words: Callable[[int], Words]) -> Callable[[int], When]:
    return lambda i: When(tenant=words(i))


def header(words: Callable[[int], Words]) -> Callable[[int], When]:
    return lambda i: When(headers={"x-team": words(i), f"x-{i % 50}": Words(exact=("any",))})


KINDS: dict[str, Callable[[int], Words]] = {
    "exact": lambda i: Words(exact=(f"t{i}-end",)),
    "prefix": lambda i: Words(prefix=(f"t{i}-",)),
    "glob": lambda i: Words(glob=(f"t{i}-*",)),
    "glob in the middle": lambda i: Words(glob=(f"t{i}-*d",)),
    "regex": lambda i: Words(regex=(f"t{i}-[a-z]+",)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", [tenant, header])
def test_rules_whose_words_do_not_fit_are_not_asked(
    monkeypatch: pytest.MonkeyPatch, where: Callable[[Callable[[int], Words]], Callable[[int], When]], kind: str
) -> None:
    made = conditions(where(KINDS[kind]))
    asked = counted(monkeypatch)
    for i in (0, 7, COUNT - 1):
        value = f"t{i}-end"
        headers = {b"x-team": value.encode(), b"x-%d" % (i % 50): b"any"}
        found = made.match(Facts("m", value, headers=headers))
        assert found is not None and found.rule.name == f"r{i:04d}"
    assert made.match(Facts("m", "nobody", headers={b"x-team": b"nobody"})) is None
    assert made.match(Facts("m", "nobody")) is None
    assert len(asked) <= 3 * FEW


def test_rules_that_ask_for_another_body_are_not_asked_once_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = conditions(lambda i: When(prompt_tokens=Span(min=i), content=(f"word{i % 40}x",), streaming=bool(i % 2)))
    asked = counted(monkeypatch)
    found = made.match(Facts("m", tokens=COUNT, look=lambda: Shape(streaming=True, text=b"a word39x here")))
    assert found is not None and found.rule.name == "r0039"
    assert made.match(Facts("m", tokens=COUNT, look=lambda: Shape(text=b"nothing"))) is None
    assert len(asked) <= FEW


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the rules that are asked from now on."""
    asked: list[str] = []
    hold = Conditions.hold

    def noted(self: Conditions, facts: Facts, content: object) -> bool:
        asked.append(self.rule.name)
        return hold(self, facts, content)  # type: ignore[arg-type]

    monkeypatch.setattr(Conditions, "hold", noted)
    return asked
