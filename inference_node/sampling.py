"""Which sampling parameters make sense, whatever the engine.

One place for typed service and applications of our own: a message names the field, the value and the range.
"""

from __future__ import annotations

import math

from inference_node.engines.base import BadRequest, Sampling

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_LOGPROBS = 20
MAX_BIASES = 300
MAX_CHOICES = 256
MAX_STRUCTURE_CHARACTERS = 128 << 10


def check(sampling: Sampling, max_n: int, prefix: str = "") -> None:
    """Raise BadRequest for the first parameter out of range; ``prefix`` goes before the names of fields."""
    s = sampling
    _whole(prefix, "n", s.n, 1, max_n)
    _between(prefix, "temperature", s.temperature, 0.0, 2.0)
    _between(prefix, "top_p", s.top_p, 0.0, 1.0, open_below=True)
    _between(prefix, "min_p", s.min_p, 0.0, 1.0)
    _between(prefix, "presence_penalty", s.presence_penalty, -2.0, 2.0)
    _between(prefix, "frequency_penalty", s.frequency_penalty, -2.0, 2.0)
    _between(prefix, "repetition_penalty", s.repetition_penalty, 0.0, 100.0, open_below=True)
    if s.top_k is not None:
        _whole(prefix, "top_k", s.top_k, -1, 1 << 31)
    _whole(prefix, "min_tokens", s.min_tokens, 0, s.max_tokens)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(s, name)
        if value is not None:
            _whole(prefix, name, value, 0, MAX_LOGPROBS)
    if s.temperature == 0 and s.n > 1:
        raise BadRequest(
            f"{prefix}n is {s.n}, but with temperature 0 all completions are the same; use n 1", f"{prefix}n"
        )
    _check_stops(s, prefix)
    _check_lists(s, prefix)


def check_max_tokens(value: int, max_max_tokens: int, param: str) -> None:
    """Raise BadRequest unless 1 ≤ value ≤ the cap."""
    if value < 1:
        raise BadRequest(f"{param} is {value}; it must be 1 or more", param)
    if value > max_max_tokens:
        raise BadRequest(f"{param} is {value}; this cluster allows {max_max_tokens} at most", param)


def _check_stops(s: Sampling, prefix: str) -> None:
    if len(s.stop) > MAX_STOPS:
        raise BadRequest(f"{prefix}stop has {len(s.stop)} strings; {MAX_STOPS} are allowed", f"{prefix}stop")
    for stop in s.stop:
        if not stop:
            raise BadRequest(f"{prefix}stop holds an empty string", f"{prefix}stop")
        if len(stop) > MAX_STOP_CHARACTERS:
            raise BadRequest(
                f"{prefix}stop holds a string of {len(stop)} characters; {MAX_STOP_CHARACTERS} are allowed",
                f"{prefix}stop",
            )


def _check_lists(s: Sampling, prefix: str) -> None:
    if s.logit_bias:
        if len(s.logit_bias) > MAX_BIASES:
            raise BadRequest(
                f"{prefix}logit_bias has {len(s.logit_bias)} entries; {MAX_BIASES} are allowed", f"{prefix}logit_bias"
            )
        for bias in s.logit_bias.values():
            _between(prefix, "logit_bias", bias, -100.0, 100.0)
    forms = [s.json_schema is not None, s.json_object, s.regex is not None, s.grammar is not None, bool(s.choice)]
    if sum(forms) > 1:
        raise BadRequest("a structured output can have one form only", "structured")
    if s.choice and (len(s.choice) > MAX_CHOICES or not all(s.choice)):
        raise BadRequest(f"choice must hold 1 to {MAX_CHOICES} strings, none of them empty", "choice")
    for name in ("json_schema", "regex", "grammar"):
        text = getattr(s, name)
        if text is not None and not 0 < len(text) <= MAX_STRUCTURE_CHARACTERS:
            raise BadRequest(f"{name} must have 1 to {MAX_STRUCTURE_CHARACTERS} characters, not {len(text)}", name)


def _whole(prefix: str, name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadRequest(f"{prefix}{name} is {value}; it must be {low} to {high}", prefix + name)


def _between(prefix: str, name: str, value: float | None, low: float, high: float, open_below: bool = False) -> None:
    if value is None:
        return
    if math.isnan(value) or not low <= value <= high or (open_below and value == low):
        bound = f"over {low:g} and at most {high:g}" if open_below else f"{low:g} to {high:g}"
        raise BadRequest(f"{prefix}{name} is {value:g}; it must be {bound}", prefix + name)
