"""How many KV cells llama.cpp gets, and what all of it takes of the memory. Sums over the file's header.

    total = weights + KV cells + states + compute buffers + outputs + process

One cell holds keys and values of one token in every layer that keeps them; all sequences share the cells. Layers with a
window have a cache of their own, as large as the windows of all sequences and one step. What admission promises are
whole cells, so the engine always has the next one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from inference_node.engines.llama_cpp_args import Settings
from inference_node.memory import checkpoint, device
from inference_node.memory.checkpoint import CheckpointError
from inference_node.memory.choice import CONCURRENT, CPU_POOL, DEFAULT_CONTEXT
from inference_node.memory.plan import COMFORT
from inference_node.memory.shapes import Shape, ShapeError, Weights
from inference_node.memory.units import MIB
from shared import logging as logs
from shared.config.schema import ConfigError, InferenceConfig

CELLS = 256  # llama.cpp rounds its cache up to this many
MOST_SEQUENCES = 256  # llama.cpp's own bound
CPU_SEQUENCES, GPU_SEQUENCES = 16, 64
PROCESS = 384 * MIB  # interpreter, node and libraries
log = logs.get("memory")
_HEAD = 64  # elements of an attention head, where scores are summed without flash attention


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine takes: cells of the cache, the longest sequence, sequences at once; and the sums in bytes."""

    cells: int
    max_seq_len: int
    max_num_seqs: int
    weights: int
    cache: int
    buffers: int
    memory: int  # there is; 0 where the machine does not say

    @property
    def total(self) -> int:
        """Everything."""
        return self.weights + self.cache + self.buffers + PROCESS


@dataclass(frozen=True, slots=True)
class Planner:
    """Sums for one file on one device."""

    shape: Shape
    weights: Weights
    settings: Settings
    memory: int
    gpu: bool = False

    def cache(self, cells: int, sequences: int) -> int:
        """Bytes of so many cells, with windows and states of so many sequences."""
        s = self.settings
        total = 0.0
        for layer in self.shape.kv:
            if layer.kind == "state":
                total += layer.count * (layer.conv + layer.recurrent) * 4 * sequences
                continue
            held = cells
            if layer.window and not s.swa_full:
                held = min(cells, _padded(layer.window * sequences + s.n_ubatch))
            # Keys and values are alike wide, but in a latent cache, which is keys alone.
            each = s.k_bytes if layer.kind == "latent" else (s.k_bytes + s.v_bytes) / 2
            total += layer.count * layer.elements * each * held
        return int(total)

    def buffers(self, cells: int, sequences: int) -> int:
        """Bytes of one step's intermediates and of the logits that come out."""
        s, shape = self.settings, self.shape
        step = s.n_ubatch * (3 * shape.widest + 6 * shape.hidden) * 4 + s.n_ubatch * cells * 6
        if s.flash_attn is False:
            step += s.n_ubatch * cells * 4 * max(shape.hidden // _HEAD, 1)
        return step + 3 * sequences * shape.vocab * 4 + 24 * shape.vocab

    def room(self, cells: int, context: int, sequences: int) -> Room:
        """The sums."""
        return Room(
            cells=cells,
            max_seq_len=min(context, cells),
            max_num_seqs=sequences,
            weights=self.weights.stored,
            cache=self.cache(cells, sequences),
            buffers=self.buffers(cells, sequences),
            memory=self.memory,
        )

    def most_cells(self, bound: int, sequences: int, limit: float) -> int:
        """Most cells, in whole ``CELLS`` and at most ``bound``, with which everything stays under ``limit`` bytes."""
        low, high = 0, bound // CELLS
        while low < high:
            middle = (low + high + 1) // 2
            if self.room(middle * CELLS, middle * CELLS, sequences).total <= limit:
                low = middle
            else:
                high = middle - 1
        return low * CELLS


def settle(config: InferenceConfig, settings: Settings, offload: bool) -> tuple[str, Room]:
    """The file to load and the room it gets on this machine. Raises ConfigError. ``offload``: the build has a GPU."""
    try:
        found = checkpoint.find(config.model, offline=True)
    except (CheckpointError, ShapeError) as e:
        raise ConfigError(f"inference.model: {e}") from None
    if found.form != "gguf" or found.path is None:
        raise ConfigError(
            f"inference.model: {config.model} is no GGUF file, and engine llama_cpp runs nothing else; name one, or "
            "set inference.engine to vllm"
        )
    gpu = offload and settings.n_gpu_layers != 0
    there = device.find(cpu=not gpu)
    planner = Planner(found.shape, found.weights, settings, there.free if there is not None else 0, gpu)
    room = choose(planner, config)
    logs.event(
        log,
        logging.INFO,
        "memory_planned",
        device="gpu" if gpu else "cpu",
        memory=room.memory,
        total=room.total,
        weights=room.weights,
        kv_cache=room.cache,
        max_seq_len=room.max_seq_len,
        max_num_seqs=room.max_num_seqs,
    )
    return str(found.path), room


def choose(planner: Planner, config: InferenceConfig) -> Room:
    """Fill in what the configuration leaves open. Raises ConfigError, with the sums, for what cannot fit."""
    own, settings = planner.shape.max_context, planner.settings
    if config.max_seq_len > own:
        raise ConfigError(
            f"inference.max_seq_len: {config.max_seq_len} is more than the {own} tokens that the model supports; "
            f"set {own} or less"
        )
    sequences = config.max_num_seqs or (GPU_SEQUENCES if planner.gpu else CPU_SEQUENCES)
    if sequences > MOST_SEQUENCES:
        raise ConfigError(f"inference.max_num_seqs: llama.cpp runs {MOST_SEQUENCES} sequences at most")
    if sequences > settings.n_batch:
        raise ConfigError(
            f"inference.max_num_seqs: {sequences} sequences need a batch of as many tokens, and n_batch is "
            f"{settings.n_batch}; raise inference.engine_args.n_batch"
        )
    context = config.max_seq_len or min(own, DEFAULT_CONTEXT)
    cells = _cells(planner, config, context, sequences)
    room = planner.room(cells, context, sequences)
    if planner.memory and room.total > planner.memory:
        raise ConfigError(_refusal(room, f"{cells:,} tokens of KV cache do not fit"))
    if config.max_seq_len and cells < config.max_seq_len:
        raise ConfigError(_refusal(room, f"the KV cache holds {cells:,} tokens, less than one sequence of {context:,}"))
    return room


def _cells(planner: Planner, config: InferenceConfig, context: int, sequences: int) -> int:
    most = _padded(context * sequences)
    if planner.settings.n_ctx:
        return _padded(planner.settings.n_ctx)
    if config.kv_cache_memory_bytes:
        return max(_cells_in(planner, config.kv_cache_memory_bytes, sequences, most), CELLS)
    if config.max_seq_len and config.max_num_seqs:
        return most  # both were asked for: then all at once must fit
    least = min(_padded(context), most)
    if not planner.memory:
        return min(most, _padded(context * CONCURRENT))
    share = config.gpu_memory_utilization if planner.gpu else COMFORT
    cells = planner.most_cells(most, sequences, planner.memory * share)
    if not planner.gpu:  # a CPU's memory is for others too
        useful = max(context * CONCURRENT, _cells_in(planner, CPU_POOL, sequences, most))
        cells = min(cells, _padded(useful))
    if cells < least:
        cells = least if config.max_seq_len else planner.most_cells(least, sequences, planner.memory)
    return max(cells, CELLS)


def _cells_in(planner: Planner, limit: int, sequences: int, most: int) -> int:
    """Most cells whose cache alone is within ``limit`` bytes."""
    low, high = 0, most // CELLS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if planner.cache(middle * CELLS, sequences) <= limit else (low, middle - 1)
    return low * CELLS


def _padded(cells: int) -> int:
    return -(-cells // CELLS) * CELLS


def _refusal(room: Room, why: str) -> str:
    def line(name: str, size: int) -> str:
        return f"  {name:<22}{size / MIB:>12,.0f} MiB"

    return "\n".join(
        (
            f"inference: the model does not fit in memory as configured: {why}",
            line("weights", room.weights),
            line(f"KV cache, {room.cells:,} cells", room.cache),
            line("buffers of a step", room.buffers),
            line("process", PROCESS),
            line("together", room.total),
            line("there is", room.memory),
            "lower inference.max_seq_len or inference.max_num_seqs, take inference.engine_args.type_k and type_v q8_0, "
            "a smaller quantization of the model, or a machine with more memory",
        )
    )
