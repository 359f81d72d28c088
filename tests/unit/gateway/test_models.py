"""The list of models, and each of its entries."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from router_node.gateway.models import MODELS, Models
from shared.errors import LayaError


class Table:
    """A route table that says what it is told to."""

    def __init__(self, *names: str) -> None:
        self.whole = b""
        self.become(*names)

    def become(self, *names: str) -> None:
        cards = [{"id": name, "object": "model", "root": name.upper()} for name in names]
        self.whole = json.dumps({"object": "list", "data": cards}).encode()

    def models_json(self) -> bytes:
        return self.whole


def models(table: Table) -> Models:
    return Models(cast(Any, table))


def test_the_list_is_the_table_s_own_bytes():
    table = Table("a", "b")
    assert models(table).answer(MODELS) is table.whole


def test_an_entry_is_found_by_its_name_in_the_path():
    found = models(Table("a", "org/b", "ü"))
    assert json.loads(found.answer(MODELS + b"/a"))["root"] == "A"
    assert json.loads(found.answer(MODELS + b"/org/b"))["root"] == "ORG/B"
    assert json.loads(found.answer(MODELS + b"/org%2Fb"))["root"] == "ORG/B"
    assert json.loads(found.answer(MODELS + b"/%C3%BC"))["id"] == "ü"


def test_entries_follow_the_table():
    table = Table("a")
    found = models(table)
    found.answer(MODELS + b"/a")
    table.become("b")
    assert json.loads(found.answer(MODELS + b"/b"))["id"] == "b"
    with pytest.raises(LayaError):
        found.answer(MODELS + b"/a")


@pytest.mark.parametrize(("names", "said"), [(("a", "b"), "a, b"), ((), "none yet")])
def test_a_model_that_is_not_there_is_an_error_that_names_those_there_are(names: tuple[str, ...], said: str):
    with pytest.raises(LayaError) as caught:
        models(Table(*names)).answer(MODELS + b"/%ffc")
    assert (caught.value.reason, caught.value.param) == ("MODEL_NOT_FOUND", "model")
    assert said in caught.value.message
