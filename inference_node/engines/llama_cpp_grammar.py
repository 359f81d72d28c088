"""Structured output as a GBNF grammar, llama.cpp's own form. JSON schemas go through llama-cpp-python's converter."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

from inference_node.engines.base import BadRequest, Sampling

_ANY_OBJECT = '{"type": "object"}'
_MOST_RULES = 1 << 20  # characters of a grammar made of a schema
_DEEPEST = 64


def grammar_of(sampling: Sampling) -> str:
    """The grammar that an answer must follow; empty for none. Raises BadRequest that names the field.

    May take a while for a large schema; not for the event loop.
    """
    if sampling.regex is not None:
        raise BadRequest("the llama_cpp engine takes no regular expression; use grammar (GBNF) or json_schema", "regex")
    if sampling.grammar is not None:
        return sampling.grammar
    if sampling.choice:
        return "root ::= " + " | ".join(_literal(choice) for choice in sampling.choice)
    if sampling.json_schema is not None:
        return _from_schema(sampling.json_schema)
    return _from_schema(_ANY_OBJECT) if sampling.json_object else ""


def _literal(text: str) -> str:
    """A GBNF string. Control characters go as escapes."""
    out = []
    for c in text:
        if c in '"\\':
            out.append("\\" + c)
        elif ord(c) < 32 or ord(c) == 127:
            out.append(f"\\x{ord(c):02X}")
        else:
            out.append(c)
    return '"' + "".join(out) + '"'


def _from_schema(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise BadRequest(f"json_schema is not valid JSON: {e}", "json_schema") from None
    if not isinstance(schema, dict):
        raise BadRequest("json_schema must be a JSON object", "json_schema")
    _check(schema, 0)
    converter: Any = importlib.import_module("llama_cpp.llama_grammar")
    try:
        grammar: str = converter.json_schema_to_gbnf(text)
    except Exception as e:  # it raises whatever comes: AssertionError, KeyError, ValueError, re.error
        what = str(e) or type(e).__name__
        raise BadRequest(f"llama.cpp makes no grammar of this json_schema: {what[:200]}", "json_schema") from None
    if len(grammar) > _MOST_RULES:
        raise BadRequest(f"the grammar of this json_schema has {len(grammar):,} characters, too many", "json_schema")
    return grammar


def _check(node: Any, depth: int) -> None:
    """Refuse what the converter would leave unheard: an answer must not break a rule that nobody told it of."""
    if depth > _DEEPEST:
        raise BadRequest(f"json_schema nests deeper than {_DEEPEST} levels", "json_schema")
    if not isinstance(node, dict):
        raise BadRequest("json_schema: every schema in it must be an object", "json_schema")
    heard = _heard(node)
    for key in node:
        if key not in heard and key not in _SILENT:
            raise BadRequest(
                f"llama.cpp's grammars cannot keep {key!r} here; take it out of json_schema", "json_schema"
            )
    ref = node.get("$ref")
    if ref is not None and not (isinstance(ref, str) and ref.startswith("#/")):
        raise BadRequest("json_schema: a $ref must point into the schema itself, as #/$defs/name", "json_schema")
    for inner in _inner(node):
        _check(inner, depth + 1)


# Words that say nothing about what an answer may be, or hold what others refer to.
_SILENT = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated")
)
_FORMATS = frozenset(("date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"))


def _heard(node: dict[str, Any]) -> tuple[str, ...]:
    """The keywords that the converter reads of a schema like this one, in the order in which it decides."""
    kind = node.get("type")
    for word in ("$ref", "oneOf", "anyOf"):
        if word in node:
            return (word,)
    if isinstance(kind, list):
        return ("type",)
    for word in ("const", "enum"):
        if word in node:
            return ("type", word)
    if kind in (None, "object") and ("properties" in node or node.get("additionalProperties", True) is not True):
        return ("type", "properties", "required", "additionalProperties")
    if kind in (None, "object") and "allOf" in node:
        return ("type", "allOf")
    if kind in (None, "array") and "items" in node:
        return ("type", "items", "minItems", "maxItems")
    if kind in (None, "array") and "prefixItems" in node:
        return ("type", "prefixItems")
    if kind in (None, "string") and "pattern" in node:
        return ("type", "pattern")
    if kind in (None, "string") and node.get("format") in _FORMATS:
        return ("type", "format")
    if kind == "string":
        return ("type", "minLength", "maxLength")
    return ("type", "additionalProperties") if kind == "object" else ("type",)


def _inner(node: dict[str, Any]) -> Iterator[Any]:
    """The schemas right inside a schema."""
    for key in ("properties", "$defs", "definitions"):
        if isinstance(found := node.get(key), dict):
            yield from found.values()
    for key in ("oneOf", "anyOf", "allOf", "prefixItems"):
        if isinstance(found := node.get(key), list):
            yield from found
    found = node.get("items")
    if found is not None:
        yield from found if isinstance(found, list) else (found,)
    if isinstance(found := node.get("additionalProperties"), dict):
        yield found
