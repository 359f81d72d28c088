"""How the next token is chosen, by llama.cpp's own samplers in their usual order.

Penalties, then top-k, top-p, min-p and temperature, then one draw. Repetition counts prompt and answer, presence and
frequency the answer alone, as in the OpenAI API. A grammar is asked about the drawn token first and only if it says no
about all of them, because that is slow. Log-probabilities are the model's own, before any of this.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inference_node.engines.base import BadRequest, Logprob, Position, Sampling
from inference_node.engines.llama_cpp_native import Floats, Model

_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_NONE = -1
_DRAWN_OUT = -1


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request that says nothing gets: the file's own recommendation, else llama.cpp's."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0

    @staticmethod
    def of(model: Model) -> Defaults:
        """From the file's ``general.sampling.*`` keys."""

        def number(key: str, otherwise: float) -> float:
            try:
                return float(model.metadata(f"general.sampling.{key}") or otherwise)
            except ValueError:
                return otherwise

        base = Defaults()
        return Defaults(
            temperature=number("temp", base.temperature),
            top_k=int(number("top_k", base.top_k)),
            top_p=number("top_p", base.top_p),
            min_p=number("min_p", base.min_p),
            repetition_penalty=number("penalty_repeat", base.repetition_penalty),
        )


class Candidates:
    """Room for one token's candidates; one per thread that samples, used for each sequence in turn."""

    def __init__(self, model: Model) -> None:
        api = model.api
        self._ids = np.arange(model.tokens, dtype=np.int32)
        self._entries = np.zeros(model.tokens, _ENTRY)
        pointer = self._entries.ctypes.data_as(ctypes.POINTER(api.llama_token_data))
        self._start = pointer
        self.array = api.llama_token_data_array(pointer, model.tokens, _NONE, False)
        self._one = np.zeros(1, _ENTRY)
        self._one_array = api.llama_token_data_array(
            self._one.ctypes.data_as(ctypes.POINTER(api.llama_token_data)), 1, _NONE, False
        )

    def fill(self, logits: Floats) -> None:
        """All tokens with their logits, in the order of their ids."""
        entries, array = self._entries, self.array
        entries["id"], entries["logit"], entries["p"] = self._ids, logits, 0.0
        array.data, array.size, array.selected, array.sorted = self._start, len(logits), _NONE, False

    def chosen(self) -> int:
        """The selected token, ``_DRAWN_OUT`` where none is possible."""
        array = self.array
        if not 0 <= array.selected < array.size:
            return _DRAWN_OUT
        entry = array.data[array.selected]
        return int(entry.id) if np.isfinite(entry.logit) else _DRAWN_OUT

    def allows(self, api: Any, grammar: Any, token: int) -> bool:
        """Whether a grammar takes this token now."""
        self._one[0] = (token, 1.0, 0.0)
        array = self._one_array
        array.size, array.selected, array.sorted = 1, _NONE, False
        api.llama_sampler_apply(grammar, ctypes.byref(array))
        return bool(np.isfinite(self._one["logit"][0]))


class Chooser:
    """The samplers of one sequence. Belongs to the thread that decodes; ``close`` frees it."""

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        defaults: Defaults,
        grammar: str,
        index: int,
        prompt: Sequence[int],
        window: int,
    ) -> None:
        """``index`` sets completions of one request apart; ``window`` is how many tokens penalties look back."""
        self._api = api = model.api
        self._vocab = model.tokens
        s = sampling
        temperature = defaults.temperature if s.temperature is None else s.temperature
        self._chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        self._grammar = make_grammar(model, grammar) if grammar else None
        repeat = defaults.repetition_penalty if s.repetition_penalty is None else s.repetition_penalty
        steered = False
        if repeat != 1.0:
            sampler = api.llama_sampler_init_penalties(model.tokens, window, repeat, 0.0, 0.0)
            for token in prompt:
                api.llama_sampler_accept(sampler, token)
            self._add(sampler)
            steered = True
        if s.frequency_penalty or s.presence_penalty:
            frequency, presence = s.frequency_penalty or 0.0, s.presence_penalty or 0.0
            self._add(api.llama_sampler_init_penalties(model.tokens, window, 1.0, frequency, presence))
            steered = True
        self._plain = temperature == 0 and not steered and self._grammar is None
        if temperature == 0:
            self._add(api.llama_sampler_init_greedy())
        else:
            self._add_draws(s, defaults, temperature, index)
        self._edits = _edits(s, model.tokens)
        self._closed = np.array(sorted({*model.ends, *s.stop_token_ids}), np.int64)

    def _add_draws(self, s: Sampling, defaults: Defaults, temperature: float, index: int) -> None:
        api = self._api
        top_k = defaults.top_k if s.top_k is None else s.top_k
        if top_k > 0:
            self._add(api.llama_sampler_init_top_k(top_k))
        self._add(api.llama_sampler_init_top_p(defaults.top_p if s.top_p is None else s.top_p, 1))
        self._add(api.llama_sampler_init_min_p(defaults.min_p if s.min_p is None else s.min_p, 1))
        self._add(api.llama_sampler_init_temp(temperature))
        seed = random.getrandbits(32) if s.seed is None else s.seed + index
        self._add(api.llama_sampler_init_dist(seed % 0xFFFFFFFF))  # the last one means "any"

    def _add(self, sampler: Any) -> None:
        self._api.llama_sampler_chain_add(self._chain, sampler)

    def choose(self, raw: Floats, candidates: Candidates, closed: bool) -> int:
        """The next token, accepted; negative where the grammar leaves none. ``closed``: it may not end here."""
        logits = raw
        if self._edits is not None:
            logits = raw + self._edits
        if closed:
            logits = logits.copy() if logits is raw else logits
            logits[self._closed] = -np.inf
        if self._plain:
            return int(np.argmax(logits))
        api, grammar = self._api, self._grammar
        candidates.fill(logits)
        api.llama_sampler_apply(self._chain, ctypes.byref(candidates.array))
        token = candidates.chosen()
        if grammar is not None and (token < 0 or not candidates.allows(api, grammar, token)):
            candidates.fill(logits)
            api.llama_sampler_apply(grammar, ctypes.byref(candidates.array))
            api.llama_sampler_apply(self._chain, ctypes.byref(candidates.array))
            token = candidates.chosen()
        if token < 0:
            return token
        api.llama_sampler_accept(self._chain, token)
        if grammar is not None:
            api.llama_sampler_accept(grammar, token)
        return token

    def close(self) -> None:
        """Free the samplers. Idempotent."""
        chain, self._chain = self._chain, None
        grammar, self._grammar = self._grammar, None
        for sampler in (chain, grammar):
            if sampler is not None:
                self._api.llama_sampler_free(sampler)


def make_grammar(model: Model, text: str) -> Any:
    """A sampler of a GBNF grammar, to be freed. Raises BadRequest where it is none."""
    model.library.last_words()
    sampler = model.api.llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
    if not sampler:
        why = model.library.last_words()
        raise BadRequest(f"grammar is no GBNF that llama.cpp reads{f': {why[:200]}' if why else ''}", "grammar")
    return sampler


def _edits(s: Sampling, vocab: int) -> Floats | None:
    """What is added to the logits of each token; None for nothing."""
    if not s.logit_bias and not s.allowed_token_ids:
        return None
    out = np.zeros(vocab, np.float32)
    if s.allowed_token_ids:
        out[:] = -np.inf
        out[list(s.allowed_token_ids)] = 0.0
    for token, bias in (s.logit_bias or {}).items():
        out[token] += bias
    return out


def position(model: Model, raw: Floats, token: int, top: int) -> Position:
    """Log-probabilities of a chosen token and of the ``top`` likeliest others."""
    wide = raw.astype(np.float64)
    peak = wide.max()
    total = peak + np.log(np.exp(wide - peak).sum())

    def entry(token: int, rank: int) -> Logprob:
        text = model.piece(token, True).decode("utf-8", "replace")
        return Logprob(token, text, float(wide[token] - total), rank)

    rank = int((raw > raw[token]).sum()) + 1
    return Position(entry(token, rank), [entry(t, i) for i, t in enumerate(_best(raw, top, token), 1) if t != token])


def _best(raw: Floats, count: int, beside: int) -> Iterable[int]:
    """The likeliest tokens, best first: ``count`` of them beside one, which may or may not be among them."""
    if count < 1:
        return ()
    most = min(count + 1, len(raw))
    found = np.argpartition(raw, -most)[-most:]
    ordered = [int(t) for t in found[np.argsort(-raw[found], kind="stable")]]
    return ordered if beside in ordered else ordered[:count]
