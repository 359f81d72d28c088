"""The sums: what a model, a context and a number of sequences take of a device. Pure functions over plain data.

    total = weights + KV pool + prefill peak + sampler + runtime reserve

*Weights*: the checkpoint's bytes, or parameters times bits; all experts are resident. *KV pool*: whole blocks
(``layout``). *Prefill peak*: layers run one after another, so one layer's tensors live at a time; of the per-layer list
in Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", section 4) inference keeps
the residual stream, its normed copy and the widest of attention's and the feed-forward part's intermediates, for the
tokens of one step; attention itself is linear in them (Dao et al. 2022, FlashAttention), and chunked prefill bounds the
step (Agrawal et al. 2023, Sarathi). A CPU's matrix products also keep 32-bit accumulators and the allocator what it was
given once: ``CPU_LIVE`` times the sum bounds what was measured (SmolLM2-360M, vLLM 0.32: 51, 101 and 214 MiB for steps
of 1,024, 2,048 and 4,096 tokens, where the plain sum is 21, 41 and 83). *Sampler*: per sequence and vocabulary entry,
``SAMPLER_BYTES``. The two peaks are added although they need not meet: published vLLM profiles lie between the larger
of them and their sum. *Runtime reserve*: ``runtime_bytes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from inference_node.memory import quant
from inference_node.memory.layout import KvLayout, LayoutRules, kv_layout
from inference_node.memory.shapes import Shape, Weights
from inference_node.memory.units import GIB

COMFORT = 0.80  # above this share of the memory a plan is tight
MOST_SEQUENCES = 4096
# One logit's copies: the model's type 2, float32 4, sorted 4 with indices 8, softmax 4, masks 2, cumulated and
# renormalized probabilities 8, noise 4, log-probabilities 4.
SAMPLER_BYTES = 40
GPU_CONTEXT, GPU_GRAPHS, GPU_LINKS = 3 * GIB // 4, 3 * GIB // 4, GIB // 2
CPU_PROCESSES, CPU_RANK = 3 * GIB // 2, 3 * GIB // 4
CPU_LIVE = 3
CPU_STEP, GPU_STEP = 256, 2048  # tokens of one step where nothing else is set
_GPU_STEPS = ((160 * GIB, 16384), (70 * GIB, 8192))


class Verdict(StrEnum):
    """Whether a plan fits its memory."""

    EASY = "fits under 80 %"
    TIGHT = "fits"
    NO = "does not fit"


@dataclass(frozen=True, slots=True)
class Options:
    """What the sums depend on beside model, context and sequences."""

    device: str = "gpu"  # or "cpu"
    quantization: str = ""  # weights as they would be; empty takes them as the checkpoint has them
    kv_dtype: str = "auto"
    dtype: str = "auto"
    block_tokens: int = 0  # 0 takes vLLM's own
    step_tokens: int = 0  # most tokens of one step; 0 takes the node's
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    prefix_caching: bool = True
    windows: bool = True  # layers with a window give back what is out of it
    graphs: bool = True  # CUDA graphs are captured
    amx: bool = False  # the CPU has tiles, which decides how vLLM lays out latent attention

    @property
    def ranks(self) -> int:
        """Devices, or processes on one CPU, that the model is spread over."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class Plan:
    """One choice of context and sequences, summed. Bytes are of one device; on a CPU of the whole machine."""

    shape: Shape
    options: Options
    memory: int
    context: int
    sequences: int
    layout: KvLayout = field(repr=False)
    pool: int  # the KV pool of one rank, vLLM's null block included
    weights: int
    prefill: int
    sampler: int
    runtime: int
    step: int  # tokens of one step
    source: str = ""  # where the weights' size is from
    weight_bytes: int = 2  # of a weight that is not quantized

    @property
    def pools(self) -> int:
        """KV pools that share the memory: one, but on a CPU one for each rank."""
        return self.options.ranks if self.options.device == "cpu" else 1

    @property
    def fixed(self) -> int:
        """All but the KV pool."""
        return self.weights + self.prefill + self.sampler + self.runtime

    @property
    def total(self) -> int:
        """Everything."""
        return self.fixed + self.pool * self.pools

    @property
    def verdict(self) -> Verdict:
        """Whether it fits, and how."""
        if self.total > self.memory:
            return Verdict.NO
        return Verdict.EASY if self.total <= self.memory * COMFORT else Verdict.TIGHT

    @property
    def shares(self) -> bool:
        """Whether the pool is too small for all sequences at full length: then they share it."""
        return self.pool < self.layout.pool_bytes(self.context, self.sequences)

    @property
    def capacity(self) -> int:
        """Tokens in the pool, as vLLM reports them."""
        return self.layout.capacity(self.pool, self.context)


class Planner:
    """Sums for one model on one kind of device. Cheap to ask again and again."""

    def __init__(self, shape: Shape, weights: Weights, options: Options, memory: int) -> None:
        """``memory`` is what the node may take, in bytes. Raises PlanError for types that are not known."""
        self.shape = shape
        self.stored = weights
        self.options = options
        self.memory = memory
        self.model_bytes = 4 if options.dtype == "float32" else 2
        self.kv_bytes = quant.kv_bytes(options.kv_dtype, self.model_bytes)
        self.weights = weights_bytes(shape, weights, options, self.model_bytes)
        self._layout = lru_cache(maxsize=64)(self._make_layout)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block before any widening: vLLM's own for the device and kind of attention."""
        latent = any(layer.kind == "latent" for layer in self.shape.kv)
        if self.options.device == "gpu":
            return self.options.block_tokens or (64 if latent else 16)
        if latent and not self.options.amx:
            return 16
        return self.options.block_tokens or 128

    def step(self, context: int, sequences: int) -> int:
        """Most tokens of one step."""
        options = self.options
        if self._whole_prompts:
            return max(context, GPU_STEP)
        if options.step_tokens:
            return options.step_tokens
        return max(CPU_STEP if options.device == "cpu" else gpu_step(self.memory), sequences)

    @property
    def _whole_prompts(self) -> bool:
        """Whether each prompt must run in one step: vLLM's plain CPU kernel of latent attention takes no parts."""
        latent = any(layer.kind == "latent" for layer in self.shape.kv)
        return latent and self.options.device == "cpu" and not self.options.amx

    def layout(self, context: int, sequences: int) -> KvLayout:
        """How the KV cache is laid out for such sequences."""
        options = self.options
        batches = options.pipeline_parallel + (1 if options.device == "gpu" else 0)
        return self._layout(self.step(context, sequences) * batches)

    def _make_layout(self, in_flight: int) -> KvLayout:
        options = self.options
        rules = LayoutRules(
            kv_bytes=self.kv_bytes,
            conv_bytes=self.model_bytes,
            block_tokens=self.block_tokens,
            state_align=32 if options.device == "cpu" else 16,
            in_flight=in_flight,
            tensor_parallel=options.tensor_parallel,
            pipeline_parallel=options.pipeline_parallel,
            prefix_caching=options.prefix_caching and not self._whole_prompts,
            windows=options.windows,
        )
        return kv_layout(self.shape, rules)

    def plan(self, context: int, sequences: int, pool: int | None = None) -> Plan:
        """The sums for ``sequences`` of ``context`` tokens at once; ``pool`` is a KV pool that is given."""
        layout = self.layout(context, sequences)
        step = self.step(context, sequences)
        shape, options = self.shape, self.options
        cpu = options.device == "cpu"
        alone = options.ranks if cpu else 1  # ranks on one CPU share its memory
        live = step * (-(-shape.widest // options.tensor_parallel) + 3 * shape.hidden) * self.model_bytes
        live *= CPU_LIVE if cpu else 1
        return Plan(
            shape=shape,
            options=options,
            memory=self.memory,
            context=context,
            sequences=sequences,
            layout=layout,
            pool=layout.pool_bytes(context, sequences) if pool is None else pool,
            weights=self.weights * alone,
            prefill=live * alone,
            sampler=sequences * shape.vocab * SAMPLER_BYTES,
            runtime=runtime_bytes(options),
            step=step,
            source=self.stored.source,
            weight_bytes=self.model_bytes,
        )

    def room(self, context: int, sequences: int, share: float = COMFORT) -> int:
        """Bytes that one KV pool may take of ``share`` of the memory; negative where the rest alone is over it."""
        plan = self.plan(context, sequences, pool=0)
        return int(self.memory * share - plan.fixed) // plan.pools

    def most_sequences(self, context: int, share: float = COMFORT) -> int:
        """Most sequences of ``context`` tokens that ``share`` of the memory holds; 0 for none."""
        return largest(MOST_SEQUENCES, lambda n: self._within(context, n, share))

    def longest_context(self, sequences: int, share: float = COMFORT, most: int = 0) -> int:
        """Longest context that so many sequences can have in ``share`` of the memory; 0 for none."""
        return largest(most or self.shape.max_context, lambda n: self._within(n, sequences, share))

    def _within(self, context: int, sequences: int, share: float) -> bool:
        return self.plan(context, sequences).total <= self.memory * share

    def with_options(self, **changes: object) -> Planner:
        """The same model and memory with other options."""
        return Planner(self.shape, self.stored, replace(self.options, **changes), self.memory)  # type: ignore[arg-type]


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 0 to ``most`` for which ``fits`` holds, which it does up to some point."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def gpu_step(total: int) -> int:
    """Tokens that vLLM takes per step on a GPU of so many bytes, where nothing else is set."""
    return next((step for size, step in _GPU_STEPS if total >= size), GPU_STEP)


def runtime_bytes(options: Options) -> int:
    """What the engine takes beside the model.

    On a GPU the driver's context, libraries and their workspaces (0.75 GiB), captured graphs (0.75 GiB) and, where
    several GPUs work together, their links' buffers (0.5 GiB). On a CPU the node's and the engine's processes (1.4 GiB
    measured with vLLM 0.32, 1.5 GiB taken) and 0.75 GiB for each further rank.
    """
    if options.device == "cpu":
        return CPU_PROCESSES + (options.ranks - 1) * CPU_RANK
    graphs = GPU_GRAPHS if options.graphs else 0
    return GPU_CONTEXT + graphs + (GPU_LINKS if options.ranks > 1 else 0)


def weights_bytes(shape: Shape, weights: Weights, options: Options, model_bytes: int) -> int:
    """Bytes of the weights on one rank. Raises PlanError where the quantization asked for is not the checkpoint's."""
    asked = options.quantization.lower()
    stored = weights.stored
    plain = not shape.quantization
    if stored and plain:
        # Held in the type the model runs in, however wide the files keep it.
        stored = stored - weights.wide + weights.wide * model_bytes // 4
        stored = stored * 2 if model_bytes == 4 and not weights.wide else stored
    if asked in quant.NONE or (not plain and quant.same_scheme(shape.quantization, asked)):
        total = stored or _by_shape(shape, shape.bits or _own_bits(shape), model_bytes)
    elif not plain and stored:
        raise quant.PlanError(
            f"the checkpoint is quantized already ({shape.quantization}); it cannot be served as {options.quantization}"
        )
    else:
        bits = quant.weight_bits(asked)
        total = _by_shape(shape, bits, model_bytes)
        if stored:  # what the shape does not know of, an image encoder perhaps, stays as it is
            total = max(int(stored - shape.linear_params * (model_bytes - bits / 8)), total)
    return _share(shape, total, options)


def _own_bits(shape: Shape) -> float:
    return quant.WEIGHT_BITS.get(shape.quantization.lower(), 0.0)


def _by_shape(shape: Shape, bits: float, model_bytes: int) -> int:
    return int(shape.linear_params * (bits / 8 if bits else model_bytes)) + shape.other_params * model_bytes


def _share(shape: Shape, total: int, options: Options) -> int:
    """The largest rank's part: its stage's layers, and embeddings at either end of the pipeline."""
    if options.pipeline_parallel > 1:
        outside = total * shape.other_params // max(shape.params, 1)
        stage = -(-shape.layers // options.pipeline_parallel)
        total = (total - outside) * stage // shape.layers + outside
    return -(-total // options.tensor_parallel)
