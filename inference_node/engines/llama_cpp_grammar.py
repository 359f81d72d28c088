"""Structured output as a GBNF grammar, llama.cpp's own form. JSON schemas go through llama-cpp-python's converter."""

from __future__ import annotations

import importlib
import json
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
    """Nothing is fetched and nothing nests without end."""
    if depth > _DEEPEST:
        raise BadRequest(f"json_schema nests deeper than {_DEEPEST} levels", "json_schema")
    if isinstance(node, dict):
        ref = node.get("$ref")
        if ref is not None and not (isinstance(ref, str) and ref.startswith("#")):
            raise BadRequest("json_schema: a $ref must point into the schema itself, as #/$defs/name", "json_schema")
        for value in node.values():
            _check(value, depth + 1)
    elif isinstance(node, list):
        for value in node:
            _check(value, depth + 1)
