"""One sequence of the simulator: its tokens, its blocks, and the text it has yet to hand over."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence

from inference_node.engines import sim_text
from inference_node.engines.base import Delta, GenerateCall, Logprob, Past, Position, Sampling


class SimRequest:
    """One call with its n sequences, and what tells its reader that there is something to read."""

    __slots__ = ("call", "failed", "live", "notify", "ready", "replayed", "sequences")

    def __init__(self, call: GenerateCall, seed: int, max_seq_len: int) -> None:
        self.call = call
        self.ready: list[SimSequence] = []  # sequences with unread output, in step order
        self.notify: Callable[[], None] | None = None
        self.failed: Exception | None = None
        self.sequences = [SimSequence(self, index, seed, max_seq_len) for index in range(call.sampling.n)]
        self.replayed = self.sequences[0].replay(call.past) if call.past is not None else []
        self.live = sum(not sequence.ended for sequence in self.sequences)


class SimSequence:
    """The state of one completion. ``tokens`` is prompt and output; ``computed`` of them have KV."""

    __slots__ = (
        "_decoder",
        "_finish",
        "_held",
        "_limit",
        "_min",
        "_new",
        "_source",
        "_stop_reason",
        "_stop_width",
        "_text",
        "arrival",
        "blocks",
        "cached",
        "computed",
        "done",
        "hashes",
        "index",
        "prompt_len",
        "request",
        "start_len",
        "tokens",
    )

    def __init__(self, request: SimRequest, index: int, seed: int, max_seq_len: int) -> None:
        sampling = request.call.sampling
        prompt = request.call.prompt.token_ids
        self.request = request
        self.index = index
        self.tokens = list(prompt)
        self.prompt_len = len(self.tokens)
        self.start_len = self.prompt_len  # tokens it was queued with: the prompt, and what the client has already
        self.computed = 0
        self.cached = -1  # prompt tokens found in the prefix cache; -1 before the first scheduling
        self.blocks: list[int] = []
        self.hashes: list[int] = []  # of the full blocks, as far as known
        self.done = False
        self.arrival = 0
        self._limit = self.prompt_len + min(sampling.max_tokens, max_seq_len - self.prompt_len)
        self._min = self.prompt_len + sampling.min_tokens
        self._source = _source(sampling, prompt, seed, index)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop_width = max(map(len, sampling.stop), default=1) - 1
        self._text = ""  # decoded, not yet handed over
        self._held = 0  # of that, the last characters that may be the start of a stop string
        self._new: list[int] = []
        self._finish = ""
        self._stop_reason = ""

    @property
    def ended(self) -> bool:
        """Whether the completion has its end."""
        return bool(self._finish)

    def append_next(self) -> bool:
        """Add the next token of the completion; True when that ended it."""
        return self._add(next(self._source, sim_text.EOS))

    def replay(self, past: Past) -> list[Delta]:
        """Say again what the client has: the deltas, as they were. Raises Inexact where it would be something else."""
        out = []
        for part in past.parts:
            for token in part:
                if self._finish or token != next(self._source, sim_text.EOS):
                    raise past.fail("the simulator's text differs here")
                self._add(token)
            delta = self.delta()
            delta.replayed = True
            out.append(delta)
        if past.finish_reason and past.finish_reason != self._finish:
            raise past.fail("the simulator's text does not end there")
        self.start_len = len(self.tokens)
        self.request.ready.clear()
        self.done = self.ended
        return out

    def _add(self, token: int) -> bool:
        sampling = self.request.call.sampling
        self.tokens.append(token)
        if not self._new:
            self.request.ready.append(self)
        self._new.append(token)
        length = len(self.tokens)
        may_stop = length > self._min
        if token == sim_text.EOS and not sampling.ignore_eos:
            self._end("stop")
            if not sampling.skip_special_tokens:
                self._text += sim_text.SPECIAL[token]
        elif may_stop and token in sampling.stop_token_ids:
            self._end("stop", str(token))
            if sampling.include_stop_str_in_output:
                self._decode(token)
        else:
            before = len(self._text)
            self._decode(token)
            if sampling.stop and may_stop:
                self._find_stop(sampling, max(0, before - self._stop_width))
        if not self._finish and length >= self._limit:
            self._end("length")
        return bool(self._finish)

    def end_without_token(self) -> None:
        """End a sequence that was only to be prefilled."""
        self.request.ready.append(self)
        self._end("length")

    def delta(self) -> Delta:
        """What is new since the last call; the sequence leaves the request's ready list."""
        sampling = self.request.call.sampling
        new, self._new = self._new, []
        cut = len(self._text) - self._held
        text, self._text = self._text[:cut], self._text[cut:]
        first = len(self.tokens) - len(new) == self.prompt_len
        delta = Delta(self.index, text, new, (), self._finish, self._stop_reason, max(self.cached, 0))
        if sampling.logprobs is not None:
            start = len(self.tokens) - len(new)
            delta.logprobs = [position(t, start + i, sampling.logprobs) for i, t in enumerate(new)]
        if first and sampling.prompt_logprobs is not None:
            prompt = self.tokens[: self.prompt_len]
            delta.prompt_logprobs = [position(t, i, sampling.prompt_logprobs) for i, t in enumerate(prompt)]
        return delta

    def _decode(self, token: int) -> None:
        special = not self.request.call.sampling.skip_special_tokens
        self._text += self._decoder.decode(sim_text.token_bytes(token, special))
        # Only what could still become a stop string waits.
        self._held = min(self._stop_width, len(self._text))

    def _find_stop(self, sampling: Sampling, start: int) -> None:
        found = [(at, stop) for stop in sampling.stop if (at := self._text.find(stop, start)) >= 0]
        if found:
            at, stop = min(found)
            self._text = self._text[: at + len(stop) if sampling.include_stop_str_in_output else at]
            self._end("stop", stop)

    def _end(self, finish: str, reason: str = "") -> None:
        self._finish = finish
        self._stop_reason = reason
        self._held = 0


def _source(sampling: Sampling, prompt: Sequence[int], seed: int, index: int) -> Iterator[int]:
    """Where a completion's tokens come from: a choice, or the known text."""
    seed = sampling.seed if sampling.seed is not None else seed
    if sampling.choice:
        key = sim_text.stream_key(prompt, seed, index)
        text = sampling.choice[key % len(sampling.choice)]
        return iter([*sim_text.encode(text), sim_text.EOS])
    return sim_text.expected_tokens(prompt, seed, index, sampling.ignore_eos, sampling.min_tokens)


def position(token: int, at: int, alternatives: int) -> Position:
    """Log-probabilities of a token at a position: a known function of both, the chosen token always the likeliest."""
    key = sim_text.stream_key((token,), at, 0)
    chosen = -((key >> 40) & 0xFF) / 512
    others = []
    for rank in range(2, alternatives + 2):
        other = sim_text.token_at(key, rank)
        others.append(Logprob(other, sim_text.decode((other,), True), chosen - 0.75 * (rank - 1), rank))
    return Position(Logprob(token, sim_text.decode((token,), True), chosen, 1), others)
