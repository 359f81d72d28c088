"""What each layer of a model is: which attend to all, to a window, or keep a state; which are sparse.

Kinds: ``full`` attends to everything; ``sliding`` to a window; ``state`` keeps a fixed state; ``both`` attends to
everything beside a state; ``shared`` attends to another layer's cache; ``bare`` is a feed-forward part alone, and
``experts`` one of a mixture.
"""

from __future__ import annotations

from inference_node.memory.reader import Reader

_STATE_ONLY = frozenset(("mamba", "mamba2", "falcon_mamba"))
_STATE_WORDS = ("linear", "mamba", "conv", "recurrent", "gated_delta", "gdn", "kda")
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
_LETTERS = {"M": "state", "*": "full", "-": "bare", "E": "experts"}  # as one family writes its layers

_ALONE = {"mlp": "bare", "moe": "experts"}


def layer_kinds(r: Reader) -> list[str]:
    """The kind of each layer, in order. Raises ShapeError where the number of layers is missing or absurd."""
    pattern = r.config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= set(_LETTERS):
        return [_LETTERS[letter] for letter in pattern[:10_000]]
    named = r.words("layers_block_type")
    count = len(named) if named and r.config.get("num_hidden_layers") is None else r.layers()
    return _share(r, _kinds(r, count))


def _kinds(r: Reader, count: int) -> list[str]:
    if r.family in _STATE_ONLY:
        return ["state"] * count
    if r.family == "falcon_h1":
        return ["both"] * count
    types = r.words("layer_types", "layers_block_type")
    if types:
        named = [_by_name(r, word) for word in types[:count]]
        return named + ["full"] * (count - len(named))
    full = _attention_indices(r, count)
    if full is not None:
        return ["full" if i in full else "state" for i in range(count)]
    return _windows(r, count)


def _by_name(r: Reader, word: str) -> str:
    if any(part in word for part in _STATE_WORDS):
        return "state"
    # A window of no size is none. Chunked attention is kept whole: vLLM switches its saving off by default.
    if "sliding" in word and r.get("sliding_window", default=0):
        return "sliding"
    return _ALONE.get(word, "full")


def _attention_indices(r: Reader, count: int) -> set[int] | None:
    """Layers that attend, in a model whose others keep a state; None for a model of attention alone."""
    listed = r.config.get("attn_layer_indices")
    if isinstance(listed, list | tuple):
        return {i for i in listed if isinstance(i, int)}
    if r.family == "bamba":
        return set()
    period = r.get("attn_layer_period", default=0)
    if period:
        offset = r.get("attn_layer_offset", default=0)
        return {i for i in range(count) if i % period == offset}
    interval = r.get("full_attention_interval", default=0)
    if interval:
        return {i for i in range(count) if (i + 1) % interval == 0}
    return None


def _windows(r: Reader, count: int) -> list[str]:
    window = r.get("sliding_window", default=0)
    if not window or r.config.get("use_sliding_window", not r.family.startswith("qwen")) is False:
        return ["full"] * count
    if r.config.get("use_sliding_window") is True:
        first = r.get("max_window_layers", default=0)
        return ["sliding" if i >= first else "full" for i in range(count)]
    pattern = r.get("sliding_window_pattern", "_sliding_window_pattern", default=0) or _PATTERNS.get(r.family, 0)
    if pattern:  # every pattern-th layer attends to everything
        return ["full" if (i + 1) % pattern == 0 else "sliding" for i in range(count)]
    return ["sliding"] * count


def _share(r: Reader, layers: list[str]) -> list[str]:
    """The last layers of some models attend to the cache of an earlier one."""
    shared = r.get("num_kv_shared_layers", default=0)
    if not 0 < shared < len(layers):
        return layers
    own = layers[: len(layers) - shared]
    return own + ["shared" if kind in ("full", "sliding") else kind for kind in layers[len(own) :]]


def feed_forward_layers(r: Reader, layers: list[str]) -> list[int]:
    """Indices of the layers with a feed-forward part: all, or the bare ones of a model that has such."""
    if r.family in _STATE_ONLY:
        return []
    alone = [i for i, kind in enumerate(layers) if kind in _ALONE.values()]
    return alone or list(range(len(layers)))


def is_sparse(r: Reader, index: int, kind: str) -> bool:
    """Whether a mixture's layer has experts rather than a dense feed-forward part."""
    if kind in _ALONE.values():
        return kind == "experts"
    if index < r.get("first_k_dense_replace", "moe_layer_start_index", default=0):
        return False
    named = r.words("mlp_layer_types")
    if index < len(named):
        return named[index] == "sparse"
    only = r.config.get("mlp_only_layers")
    if isinstance(only, list) and index in only:
        return False
    period = r.get("expert_layer_period", default=0)
    if period:
        return index % period == r.get("expert_layer_offset", default=0) % period
    step = r.get("decoder_sparse_step", "interleave_moe_layer_step", default=1) or 1
    every = r.config.get("moe_layer_freq")
    if isinstance(every, int) and every > 1 and index % every:
        return False
    return (index + 1) % step == 0
