"""Structured output as grammars: what a schema says is kept, or refused by its word."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from inference_node.engines.base import BadRequest, Sampling
from inference_node.engines.llama_cpp_grammar import grammar_of

needs_llama = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed; make setup-llama-cpp"
)


def of(**form: Any) -> str:
    return grammar_of(Sampling(4, **form))


def schema(value: Any) -> str:
    return of(json_schema=json.dumps(value))


def test_nothing_asked_for_is_no_grammar_and_a_grammar_is_itself() -> None:
    assert of() == ""
    assert of(grammar='root ::= "x"') == 'root ::= "x"'


def test_choices_are_literals_with_their_odd_characters_escaped() -> None:
    assert of(choice=["a", 'say "b"', "c\\d\n"]) == 'root ::= "a" | "say \\"b\\"" | "c\\\\d\\x0A"'


@needs_llama
def test_a_schema_becomes_rules() -> None:
    text = schema(
        {
            "type": "object",
            "title": "Person",
            "properties": {"maximum": {"type": "string", "maxLength": 3}, "of": {"$ref": "#/$defs/n"}},
            "required": ["maximum"],
            "$defs": {"n": {"type": ["integer", "null"]}},
        }
    )
    assert "root ::=" in text and "maximum" in text
    assert "root ::=" in of(json_object=True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"type": "integer", "maximum": 3}, "'maximum'"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"minimum": 1}}}}, "'minimum'"),
        ({"type": ["string", "null"], "maxLength": 3}, "'maxLength'"),
        ({"type": "string", "format": "email"}, "'format'"),
        ({"anyOf": [{"type": "string", "pattern": "^a$", "minLength": 2}]}, "'minLength'"),
        ({"$ref": "https://example.org/s.json"}, "must point into the schema"),
        ({"$defs": {"x": {"$ref": "other.json#/a"}}, "type": "object"}, "must point into the schema"),
        ({"type": "array", "items": True}, "must be an object"),
    ],
)
def test_words_that_no_grammar_would_keep_are_refused(value: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        schema(value)
    assert refused.value.param == "json_schema"


@needs_llama
@pytest.mark.parametrize(
    "value", [{"$ref": "#/$defs/none"}, {"type": "string", "pattern": "no anchors"}, {"type": "x"}]
)
def test_what_the_converter_cannot_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest, match="makes no grammar"):
        schema(value)


def test_bad_schemas_are_one_sentence() -> None:
    deep: Any = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    for text, words in (("{", "not valid JSON"), ("[]", "must be a JSON object"), (json.dumps(deep), "nests deeper")):
        with pytest.raises(BadRequest, match=words):
            of(json_schema=text)
    with pytest.raises(BadRequest, match="no regular expression"):
        of(regex="a+")
