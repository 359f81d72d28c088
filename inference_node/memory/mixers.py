"""Layers that keep a fixed state per sequence instead of a cache that grows.

Sizes follow the papers: Mamba (Gu and Dao 2023), Mamba-2 (Dao and Gu 2024), Gated DeltaNet (Yang et al. 2024), and the
short convolutions of LFM2. Each keeps the last ``kernel - 1`` inputs of its convolution and, but for the last, a state.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference_node.memory.reader import Reader, ShapeError


@dataclass(frozen=True, slots=True)
class Mixer:
    """One such layer: elements of its two states per sequence, its parameters, its widest activations per token."""

    conv: int
    recurrent: int
    params: int
    widest: int


def mixer(r: Reader, hidden: int) -> Mixer:
    """The state layer a configuration describes. Raises ShapeError where its sizes are not given."""
    if r.config.get("linear_num_value_heads") is not None:
        return _gated_delta_net(r, hidden)
    if r.config.get("conv_L_cache") is not None:
        return _short_conv(r, hidden)
    if r.family in ("mamba", "falcon_mamba", "jamba"):
        return _mamba(r, hidden)
    if any(r.config.get(name) is not None for name in ("mamba_d_state", "ssm_state_size", "state_size")):
        return _mamba2(r, hidden)
    raise ShapeError(
        "config.json: linear_num_value_heads, mamba_d_state, state_size and conv_L_cache are all missing, and the "
        "state of its recurrent layers cannot be summed without one of them"
    )


def _gated_delta_net(r: Reader, hidden: int) -> Mixer:
    value_heads = r.need("linear_num_value_heads")
    keys = r.need("linear_num_key_heads") * r.need("linear_key_head_dim")
    values = value_heads * r.need("linear_value_head_dim")
    channels = 2 * keys + values
    kernel = r.get("linear_conv_kernel_dim", default=4)
    params = hidden * (channels + values + 2 * value_heads) + values * hidden + channels * kernel
    state = values * r.need("linear_key_head_dim")
    return Mixer(channels * max(kernel - 1, 0), state, params, 2 * channels + 2 * values)


def _short_conv(r: Reader, hidden: int) -> Mixer:
    kernel = r.need("conv_L_cache")
    width = r.get("conv_dim", default=0) or hidden
    return Mixer(width * (kernel - 1), 0, 4 * hidden * width + width * kernel, 4 * width)


def _mamba(r: Reader, hidden: int) -> Mixer:
    inner = r.get("intermediate_size", default=0) if r.family != "jamba" else 0
    inner = inner or hidden * r.get("mamba_expand", "expand", default=2)
    state = r.get("mamba_d_state", "state_size", default=16)
    kernel = r.get("mamba_d_conv", "conv_kernel", default=4)
    rank = r.config.get("mamba_dt_rank", r.config.get("time_step_rank"))
    rank = rank if isinstance(rank, int) and 0 < rank <= hidden else -(-hidden // 16)
    params = inner * (3 * hidden + 2 * rank + 3 * state + kernel)
    return Mixer(inner * max(kernel - 1, 0), inner * state, params, 4 * inner)


def _mamba2(r: Reader, hidden: int) -> Mixer:
    heads = r.need("mamba_n_heads", "mamba_num_heads", "num_heads")
    dim = r.config.get("mamba_d_head")
    if isinstance(dim, str):  # "auto"
        dim = hidden * r.get("mamba_expand", default=2) // heads
    else:
        dim = r.need("mamba_d_head", "mamba_head_dim", "head_dim")
    inner = heads * dim
    state = r.need("mamba_d_state", "ssm_state_size", "state_size")
    groups = r.get("mamba_n_groups", "n_groups", default=1) or 1
    kernel = r.get("mamba_d_conv", "conv_kernel", default=4)
    channels = inner + 2 * groups * state
    params = hidden * (inner + channels + heads) + inner * hidden + channels * kernel
    return Mixer(channels * max(kernel - 1, 0), inner * state, params, 2 * channels + 2 * inner)
