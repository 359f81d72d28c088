"""One completion of engine llama_cpp: its tokens, its place in the KV cache, and what its reader has yet to get.

Everything here but ``LlamaRequest``'s reading side belongs to the thread that decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from inference_node.engines.base import Delta, Finished, GenerateCall, Position
from inference_node.engines.llama_cpp_text import TextOut

if TYPE_CHECKING:
    from inference_node.engines.llama_cpp_sampler import Chooser


class Vocabulary(Protocol):
    """What a sequence asks of the model."""

    ends: frozenset[int]

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes of a token."""


class LlamaRequest:
    """One call with its n sequences."""

    __slots__ = ("aborted", "call", "failed", "grammar", "live", "notify", "ready", "sequences")

    def __init__(self, call: GenerateCall, grammar: str, vocabulary: Vocabulary, max_seq_len: int) -> None:
        """``grammar`` is GBNF, empty for none."""
        self.call = call
        self.grammar = grammar
        self.aborted = False  # the decoding thread has let go of it
        # The event loop's: what was delivered, and who waits for it.
        self.ready: list[Delta] = []
        self.notify: Callable[[], None] | None = None
        self.failed: Exception | None = None
        self.live = call.sampling.n
        self.sequences = [LlamaSequence(self, i, vocabulary, max_seq_len) for i in range(call.sampling.n)]


class LlamaSequence:
    """The state of one completion. ``tokens`` is prompt and answer; ``computed`` of them are in the cache."""

    __slots__ = (
        "_bounded",
        "_limit",
        "_min",
        "_text",
        "_vocabulary",
        "arrival",
        "chooser",
        "computed",
        "finish",
        "index",
        "prompt_len",
        "request",
        "slot",
        "stop_reason",
        "tokens",
    )

    def __init__(self, request: LlamaRequest, index: int, vocabulary: Vocabulary, max_seq_len: int) -> None:
        sampling = request.call.sampling
        self.request = request
        self.index = index
        self.tokens = list(request.call.prompt.token_ids)
        self.prompt_len = len(self.tokens)
        self.computed = 0
        self.slot = -1  # its number in the cache; -1 while it waits
        self.arrival = 0
        self.finish = ""
        self.stop_reason = ""
        self.chooser: Chooser | None = None
        self._vocabulary = vocabulary
        self._limit = self.prompt_len + min(sampling.max_tokens, max_seq_len - self.prompt_len)
        self._min = self.prompt_len + sampling.min_tokens
        self._bounded = bool(request.grammar)
        self._text = TextOut(sampling.stop, sampling.include_stop_str_in_output)

    @property
    def prefilled(self) -> bool:
        """Whether the next token is all that is missing in the cache."""
        return self.computed >= self.prompt_len

    @property
    def closed(self) -> bool:
        """Whether it may not end at the next token."""
        return len(self.tokens) < self._min

    def add(self, token: int, positions: Sequence[Position] = ()) -> Delta:
        """Take the next token; what its reader gets of it. A token below 0 ends the answer: none is possible."""
        new: Sequence[int] = ()
        if token < 0:
            self._end("stop")
        else:
            self.tokens.append(token)
            new = (token,)
            self._judge(token)
        return Delta(self.index, self._text.take(), new, positions, self.finish, self.stop_reason)

    def _judge(self, token: int) -> None:
        sampling = self.request.call.sampling
        length = len(self.tokens)
        may_stop = length > self._min
        special = not sampling.skip_special_tokens
        if token in self._vocabulary.ends and (self._bounded or not sampling.ignore_eos):
            if special:
                self._text.feed(self._vocabulary.piece(token, True), False)
            self._end("stop")
        elif may_stop and token in sampling.stop_token_ids:
            if sampling.include_stop_str_in_output:
                self._text.feed(self._vocabulary.piece(token, special), False)
            self._end("stop", str(token))
        else:
            stop = self._text.feed(self._vocabulary.piece(token, special), may_stop)
            if stop:
                self._end("stop", stop)
        if not self.finish and length >= self._limit:
            self._end("length")

    def _end(self, finish: str, reason: str = "") -> None:
        self.finish = finish
        self.stop_reason = reason
        self._text.end()

    def finished(self) -> Finished:
        """What over-commit learns of it."""
        return Finished(self.prompt_len, self._limit - self.prompt_len, len(self.tokens) - self.prompt_len)
