"""Conversations as text, by the Jinja template in the model's file.

A template comes with the model and is not trusted: it runs in a sandbox, sees only what a template needs, and its
output is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference_node.engines.base import BadRequest, Message

MOST_CHARACTERS = 32 << 20
_OURS = frozenset(("messages", "bos_token", "eos_token", "raise_exception", "strftime_now"))


class _Refused(Exception):
    """The template's own word: ``raise_exception``."""


class ChatTemplate:
    """One model's template, compiled. Rendering takes a while for a long conversation; not for the event loop."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        """Raises ValueError for a template that Jinja cannot read."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as e:
            raise ValueError(f"its chat template cannot be read: {e}") from None
        self._marks = {"bos_token": bos, "eos_token": eos}

    def render(self, messages: Sequence[Message], extra: Mapping[str, Any]) -> str:
        """The conversation as text, open for the assistant's turn unless ``extra`` says not. Raises BadRequest."""
        for name in _OURS.intersection(extra):
            raise BadRequest(f"chat_template_kwargs must not set {name}", "chat_template_kwargs")
        turns = [_turn(message) for message in messages]
        values = {"add_generation_prompt": True, "tools": None, **self._marks, **extra, "messages": turns}
        try:
            parts, size = [], 0
            for part in self._template.generate(values):
                size += len(part)
                if size > MOST_CHARACTERS:
                    raise BadRequest(f"the conversation has over {MOST_CHARACTERS:,} characters", "messages")
                parts.append(part)
            return "".join(parts)
        except _Refused as e:
            raise BadRequest(f"the model's chat template refuses these messages: {e}", "messages") from None
        except BadRequest:
            raise
        except Exception as e:  # whatever a template can do wrong: types, missing keys, the sandbox's word
            raise BadRequest(f"the model's chat template fails on these messages: {e}", "messages") from None


def _turn(message: Message) -> dict[str, str]:
    turn = {"role": message.role, "content": message.content}
    if message.name:
        turn["name"] = message.name
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _refuse(words: str) -> NoReturn:
    raise _Refused(words)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Jinja's own filter escapes for HTML, which no model has learned."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
