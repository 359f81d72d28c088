"""The simulator's text: a known function of prompt, seed and index.

``expected_tokens`` is pure, so that a test can say of any stream whether a token was lost, repeated or swapped: every
token depends on all prompt tokens, the seed, which of the n completions it belongs to, and its position.

The tokenizer is reversible and keeps prefixes. Text is cut into pieces (a run of letters with the space before it, or
a run of anything else); a piece that is a known word is one token, any other is cut into groups of up to three UTF-8
bytes. Ids:

* 0–255: one byte
* 256: end of sequence; 257–261: marks of a chat template
* 512–1535: a space and a word
* 65,536 + v: two bytes; 16,777,216 + v: three bytes, v being their big-endian value
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import count

import xxhash

EOS = 256
SYSTEM, USER, ASSISTANT, TOOL, END = 257, 258, 259, 260, 261
SPECIAL = {
    EOS: "<|eos|>",
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
    TOOL: "<|tool|>",
    END: "<|end|>",
}
WORDS_AT = 512
TWO_AT = 1 << 16
THREE_AT = 1 << 24
VOCABULARY = THREE_AT + (1 << 24)

_ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z")
_VOWELS = ("a", "e", "i", "o")
_CODAS = ("", "l", "n", "r")
_TAILS = ("", "da", "mi", "to")
# 16 onsets × 4 vowels × 4 codas × 4 tails: 1,024 words, no two alike.
WORDS = tuple(f" {o}{v}{c}{t}" for o in _ONSETS for v in _VOWELS for c in _CODAS for t in _TAILS)
LONGEST_TOKEN = max(map(len, WORDS))  # bytes
_WORD_ID = {word.encode(): WORDS_AT + i for i, word in enumerate(WORDS)}
_PIECE = re.compile(rb" ?[A-Za-z]+|[^A-Za-z ]+| +(?![A-Za-z])| ")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
SHORTEST, LONGEST = 16, 1024  # natural lengths, in tokens, end of sequence included


def encode(text: str) -> list[int]:
    """Token ids of a text. Raises UnicodeEncodeError for text that is no Unicode (lone surrogates)."""
    out: list[int] = []
    for piece in _PIECE.findall(text.encode()):
        known = _WORD_ID.get(piece)
        if known is not None:
            out.append(known)
            continue
        for at in range(0, len(piece), 3):
            group = piece[at : at + 3]
            size = len(group)
            value = int.from_bytes(group, "big")
            out.append(value if size == 1 else TWO_AT + value if size == 2 else THREE_AT + value)
    return out


def token_bytes(token: int, special: bool = False) -> bytes:
    """The bytes of one token; special tokens are empty unless ``special``. Raises ValueError for an unknown id."""
    if WORDS_AT <= token < WORDS_AT + len(WORDS):
        return WORDS[token - WORDS_AT].encode()
    if 0 <= token < 256:
        return bytes((token,))
    if token in SPECIAL:
        return SPECIAL[token].encode() if special else b""
    if TWO_AT <= token < TWO_AT * 2:
        return (token - TWO_AT).to_bytes(2, "big")
    if THREE_AT <= token < VOCABULARY:
        return (token - THREE_AT).to_bytes(3, "big")
    raise ValueError(f"token id {token} is not in the simulator's vocabulary")


def decode(tokens: Sequence[int], special: bool = False) -> str:
    """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(token_bytes(token, special) for token in tokens).decode("utf-8", "replace")


def is_token(token: int) -> bool:
    """Whether an id is in the vocabulary."""
    return (
        0 <= token <= END
        or WORDS_AT <= token < WORDS_AT + len(WORDS)
        or TWO_AT <= token < TWO_AT * 2
        or THREE_AT <= token < VOCABULARY
    )


def stream_key(prompt_ids: Sequence[int], seed: int, n_index: int) -> int:
    """64 bits that stand for one completion: prompt, seed and index."""
    digest = xxhash.xxh3_64_intdigest(array("I", prompt_ids).tobytes(), seed & _MASK)
    return _mix(digest ^ ((n_index + 1) * _GOLDEN & _MASK))


def natural_length(key: int) -> int:
    """Tokens before the sequence ends by itself, its end token included: 16 to 1,024, evenly on a log scale."""
    share = (_mix(key ^ _GOLDEN) >> 11) / (1 << 53)
    return int(SHORTEST * (LONGEST / SHORTEST) ** share)


def token_at(key: int, position: int) -> int:
    """The word token at a position, the end of sequence left aside."""
    return WORDS_AT + (_mix(key + (position + 1) * _GOLDEN & _MASK) >> 54)


def expected_tokens(
    prompt_ids: Sequence[int], seed: int, n_index: int = 0, ignore_eos: bool = False, min_tokens: int = 0
) -> Iterator[int]:
    """The tokens of one completion, in order: endless with ``ignore_eos``, else up to and with the end of sequence.

    ``min_tokens`` words come before an end, as for the request's parameter of that name.
    """
    key = stream_key(prompt_ids, seed, n_index)
    if ignore_eos:
        yield from (token_at(key, i) for i in count())
    length = max(natural_length(key), min_tokens + 1)
    yield from (token_at(key, i) for i in range(length - 1))
    yield EOS


def _mix(value: int) -> int:
    """The finalizer of splitmix64: every input bit moves every output bit."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
