"""The shape of a model: what its ``config.json`` says about memory.

All counts are of the whole model. What a sequence keeps depends on the kind of its layers (``KvLayer``): attention
keeps a key and a value for each KV head and token (``2 · kv_heads · head_dim`` elements; Shazeer 2019 for MQA, Ainslie
et al. 2023 for GQA), multi-head latent attention one compressed vector and one rotary key (``kv_lora_rank +
qk_rope_head_dim``; DeepSeek-V2, 2024), a sliding window nothing beyond it, a recurrent layer a state (``mixers``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_node.memory import kinds, mixers
from inference_node.memory.reader import Reader, ShapeError

__all__ = ["KvLayer", "Shape", "ShapeError", "Weights", "from_config"]


@dataclass(frozen=True, slots=True)
class KvLayer:
    """``count`` layers that keep the same per sequence."""

    count: int
    kind: str  # "full", "sliding", "latent" or "state"
    heads: int = 0  # KV heads, which tensor parallelism shares out; 1 for a latent vector
    width: int = 0  # elements per head and token, keys and values together
    window: int = 0  # tokens kept at most; 0 keeps all
    conv: int = 0  # elements of a convolution's state per sequence, in the model's type
    recurrent: int = 0  # elements of a recurrent state per sequence, in the state's type

    @property
    def elements(self) -> int:
        """Elements per token in one such layer."""
        return self.heads * self.width


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's weights as its checkpoint stores them."""

    stored: int  # 0 where there are no files and the shape must tell
    wide: int = 0  # of these, bytes in 32- or 64-bit floating point
    source: str = ""  # where the number is from, for people


@dataclass(frozen=True, slots=True)
class Shape:
    """What the sums need to know of a model."""

    name: str
    family: str  # config.json's model_type
    layers: int
    hidden: int
    vocab: int
    max_context: int  # tokens the model was made for
    linear_params: int  # parameters of linear layers: what weight quantization shrinks
    other_params: int  # embeddings, norms, output head: kept in the model's own type
    kv: tuple[KvLayer, ...]
    widest: int  # elements per token that one layer holds at once at its widest
    dtype_bytes: int = 2  # of the checkpoint's elements where they are not quantized
    experts: int = 0
    quantization: str = ""  # of the checkpoint; empty for none
    bits: float = 0.0  # a quantized weight's, scales included; 0 where the checkpoint does not say
    state_bytes: int = 4  # of an element of a recurrent state
    multimodal: bool = False  # has an encoder for images or sound, which the shape does not count
    notes: tuple[str, ...] = ()  # what is a bound rather than known

    @property
    def params(self) -> int:
        """All parameters; every expert of a mixture counts, because every expert is resident."""
        return self.linear_params + self.other_params

    @property
    def elements_per_token(self) -> int:
        """KV elements that one more token of context costs while it is inside every window."""
        return sum(layer.count * layer.elements for layer in self.kv)


def from_config(config: Mapping[str, Any], name: str = "") -> Shape:
    """The shape a Hugging Face ``config.json`` describes. Raises ShapeError naming the field that is amiss."""
    r = Reader.of(config)
    hidden = r.need("hidden_size", "n_embd", "d_model", "dim")
    vocab = r.need("vocab_size", "padded_vocab_size")
    layers = kinds.layer_kinds(r)
    plan = Counter(layers)
    attention = _attention(r, hidden, plan)
    mixer = mixers.mixer(r, hidden) if plan["state"] + plan["both"] else None
    feed = _feed_forward(r, hidden, layers)
    tables, beside = _embeddings(r, hidden, vocab, len(layers))
    context = _context(r)
    notes = list(r.notes)
    if not r.known:
        notes.append("architecture not known by name: counted by the usual fields of a decoder")
    linear = attention.params + feed.params + beside
    kv, widest = list(attention.kv), [attention.widest, feed.widest]
    if mixer is not None:
        count = plan["state"] + plan["both"]
        linear += mixer.params * count
        kv.append(KvLayer(count, "state", conv=mixer.conv, recurrent=mixer.recurrent))
        widest.append(mixer.widest)
    return Shape(
        name=name or str(r.config.get("_name_or_path") or r.family or "model"),
        family=r.family,
        layers=len(layers),
        hidden=hidden,
        vocab=vocab,
        max_context=context,
        linear_params=linear,
        other_params=tables,
        kv=tuple(layer for layer in kv if layer.count),
        widest=max(widest),
        dtype_bytes=_dtype_bytes(r),
        experts=feed.experts,
        quantization=_quantization(r)[0],
        bits=_quantization(r)[1],
        state_bytes=2 if str(r.config.get("mamba_ssm_dtype")) in ("bfloat16", "float16") else 4,
        multimodal=r.multimodal,
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Parameters of all such layers, the widest set of live activations, and what is kept."""

    params: int
    widest: int
    kv: tuple[KvLayer, ...] = ()
    experts: int = 0


def _attention(r: Reader, hidden: int, plan: Counter[str]) -> _Part:
    full, sliding = plan["full"] + plan["both"], plan["sliding"]
    shared = min(plan["shared"], full + sliding)  # layers that attend to another layer's cache
    count = full + sliding + shared
    if not count:
        return _Part(0, 0)
    heads = r.need("num_attention_heads", "n_head", "num_heads", "n_heads")
    rank = r.get("kv_lora_rank", default=0)
    if rank:
        return _latent_attention(r, hidden, heads, rank, count)
    kv_heads = r.get(
        "num_key_value_heads", "n_head_kv", "num_kv_heads", "n_kv_heads", "multi_query_group_num", default=0
    )
    alone = r.config.get("multi_query") and not r.config.get("new_decoder_architecture")
    if alone and (not kv_heads or r.family == "falcon"):
        kv_heads = 1
    kv_heads = kv_heads or heads
    dim = r.get("head_dim", "kv_channels", "attention_head_dim", default=0) or max(hidden // heads, 1)
    value_dim = r.get("v_head_dim", default=0) or dim
    # Some models give the layers that see everything wider or fewer heads than those with a window.
    wide_dim = r.get("global_head_dim", default=0) or dim
    wide_heads = r.get("num_global_key_value_heads", default=0) or kv_heads
    gate = 2 if r.config.get("attn_output_gate", r.family.startswith(("qwen3_next", "qwen3_5"))) else 1

    def params(kv: int, width: int) -> int:
        return hidden * (heads * (gate * width + value_dim) + kv * (width + value_dim))

    window = r.get("sliding_window", default=0)
    kv = (
        KvLayer(full, "full", wide_heads, wide_dim + (value_dim if wide_dim == dim else wide_dim)),
        KvLayer(sliding, "sliding", kv_heads, dim + value_dim, window=window),
    )
    widest = max(heads * (gate + 1) * d + 2 * k * d for k, d in ((kv_heads, dim), (wide_heads, wide_dim)))
    total = params(wide_heads, wide_dim) * full + params(kv_heads, dim) * (sliding + shared)
    return _Part(total, widest, tuple(layer for layer in kv if layer.count))


def _latent_attention(r: Reader, hidden: int, heads: int, rank: int, count: int) -> _Part:
    rope = r.get("qk_rope_head_dim", default=64)
    nope = r.get("qk_nope_head_dim", default=128)
    value = r.get("v_head_dim", default=128)
    q_rank = r.get("q_lora_rank", default=0)
    query = heads * (nope + rope)
    params = (hidden * q_rank + q_rank * query) if q_rank else hidden * query
    params += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    # A prompt's keys and values are expanded to every head, the keys a second time with the rotary part joined on.
    widest = 2 * query + heads * (nope + 2 * value)
    if r.family in _LATENT or not r.family:
        # Sparse attention keeps an index beside it: a byte per element, and a scale of four bytes.
        index = r.get("index_head_dim", default=0)
        kept = KvLayer(count, "latent", 1, rank + rope + (index + 4 + 1) // 2 * bool(index))
    else:
        r.notes.append("its latent attention is not known by name: keys and values of every head are counted")
        kept = KvLayer(count, "full", heads, 2 * max(nope + rope, value))
    return _Part(params * count, widest, (kept,))


def _feed_forward(r: Reader, hidden: int, layers: list[str]) -> _Part:
    """Feed-forward parts with every expert. One layer has its gate, its product and its output live at once."""
    inner = _dense_width(r, hidden)
    matrices = 2 if r.family in _UNGATED else 3
    dense = matrices * hidden * inner
    with_mlp = kinds.feed_forward_layers(r, layers)
    experts = r.get("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", default=0)
    if experts <= 1:
        return _Part(dense * len(with_mlp), matrices * inner)
    expert_inner = r.get("moe_intermediate_size", default=0) or r.get("intermediate_size", default=inner)
    one = 1 if r.family == "llama4_text" else 0
    shared = r.get("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=one) * expert_inner
    wider = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
    shared = r.get(*wider, default=0) or shared
    chosen = r.get("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk", default=2)
    sparse = sum(kinds.is_sparse(r, i, layers[i]) for i in with_mlp)
    per_layer = matrices * hidden * (experts * expert_inner + shared) + hidden * experts
    widest = max(matrices * inner, chosen * (matrices * expert_inner + hidden) + matrices * shared)
    return _Part(per_layer * sparse + dense * (len(with_mlp) - sparse), widest, experts=experts)


def _dense_width(r: Reader, hidden: int) -> int:
    """Width of a feed-forward part without experts."""
    inner = r.get("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=0)
    inner = inner or hidden * r.get("expansion_ratio", default=4)
    if r.config.get("block_auto_adjust_ff_dim"):
        multiple = r.get("block_multiple_of", default=1) or 1
        inner = -(-(2 * inner // 3) // multiple) * multiple
    return inner


def _embeddings(r: Reader, hidden: int, vocab: int, layers: int) -> tuple[int, int]:
    """Parameters of tables, and of the linear layers that belong to them."""
    tied = bool(r.config.get("tie_word_embeddings", r.family in _TIED))
    tables = vocab * hidden * (1 if tied else 2) + (2 * layers + 1) * hidden
    if r.family in _LEARNED:
        tables += r.get("max_position_embeddings", "n_positions", default=0) * hidden
    per_layer = r.get("hidden_size_per_layer_input", default=0)
    tables += r.get("vocab_size_per_layer_input", default=vocab) * per_layer * layers
    return tables, 3 * hidden * per_layer * layers


def _context(r: Reader) -> int:
    """Tokens of context: the usual fields, and the factor of a rotary scaling that is not yet in them."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
    own = min(filter(None, (r.get(name, default=0) for name in names)), default=0)
    own = r.get("model_max_length", default=0) or own
    if not own:
        r.notes.append("the context length is not given: 2,048 tokens taken")
        return 2048
    scaling = r.config.get("rope_scaling") or r.config.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return own
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind in ("su", "longrope"):
        return r.get("original_max_position_embeddings", default=0) or own
    factor = scaling.get("factor", 1)
    if kind not in ("linear", "dynamic", "ntk") or "gemma3" in r.family or not isinstance(factor, int | float):
        return own
    return int(own * factor) if 1 <= factor <= 1024 else own


def _quantization(r: Reader) -> tuple[str, float]:
    """Method and bits per weight with its scales, as far as the checkpoint says."""
    quant = r.config.get("quantization_config") or r.config.get("compression_config")
    if not isinstance(quant, Mapping):
        return "", 0.0
    method = str(quant.get("quant_method") or "unknown")[:64]
    bits = _number(quant.get("bits", quant.get("w_bit")), 16)
    group = _number(quant.get("group_size", quant.get("q_group_size")), 65536)
    groups = quant.get("config_groups")
    if not bits and isinstance(groups, Mapping):  # the largest of the schemes that its layers have
        schemes = [g.get("weights") for g in groups.values() if isinstance(g, Mapping)]
        found = [(_number(s.get("num_bits"), 16), s.get("group_size")) for s in schemes if isinstance(s, Mapping)]
        bits, width = max(found, key=lambda entry: entry[0], default=(0.0, None))
        group = _number(width, 65536)
    return method, bits + (16 + bits) / group if bits and group else bits


def _number(value: object, most: int) -> float:
    """A number over 0 and at most ``most``; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value <= most else 0.0


def _dtype_bytes(r: Reader) -> int:
    name = str(r.config.get("dtype") or r.config.get("torch_dtype") or "bfloat16")
    return {"float32": 4, "float64": 8}.get(name.removeprefix("torch."), 2)


_TIED = frozenset(
    (
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text"),
        *("gpt2", "gpt_bigcode", "cohere", "cohere2"),
    )
)
# Families whose attention keeps the latent vector alone.
_LATENT = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear", "glm4_moe_lite", "glm_moe_dsa"),
        *("longcat_flash", "axk1", "pangu_ultra_moe"),
    )
)
# Families that learn an embedding for each position.
_LEARNED = frozenset(("gpt2", "gpt_bigcode", "gpt_neo", "opt"))
_UNGATED = frozenset(
    (
        *("gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "mpt"),
        *("starcoder2", "nemotron", "nemotron_h", "codegen", "apertus", "arcee"),
    )
)
