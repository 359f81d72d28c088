"""How vLLM lays a model's KV cache out in blocks, and so what a sequence of a length really takes.

Layers of one kind share a block table. A model of several kinds is cut into groups of as many layers each, and all
groups draw their blocks from one pool, so that a block of the pool is as large as one group's layers need for one block
of tokens. A group that attends to everything takes a block for each so many tokens; one with a window no more than the
window, what is in flight and one block more; one that keeps a state a fixed number. One block of the pool is never used
(vLLM's null block). The rules are those of vLLM 0.32; ``tests/e2e/test_plan_vllm.py`` holds them against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference_node.memory.sequence import BlockGroup, windowed
from inference_node.memory.shapes import KvLayer, Shape

LONGEST = 1 << 26  # tokens; no model reads more in one sequence


@dataclass(frozen=True, slots=True)
class Group:
    """``copies`` alike groups of layers. Each takes its own blocks for the same tokens."""

    kind: str
    copies: int
    block_tokens: int  # tokens of one block; of no meaning for a state
    window: int = 0
    state_blocks: int = 0  # blocks per sequence, whatever its length

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks that one sequence of so many tokens can hold at most, in all copies, as vLLM counts them."""
        if self.state_blocks:
            return self.copies * self.state_blocks
        if self.window:
            kept = min(self.window - 1 + in_flight, tokens)
            return self.copies * (-(-kept // self.block_tokens) + 1)
        return self.copies * -(-tokens // self.block_tokens)

    def rule(self, in_flight: int) -> BlockGroup:
        """The same for the ledger, to the block."""
        if self.state_blocks:
            return BlockGroup(self.copies, extra=self.state_blocks)
        if self.window:
            return windowed(self.copies, self.block_tokens, self.window, in_flight)
        return BlockGroup(self.copies, self.block_tokens)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The pool of blocks on one device."""

    groups: tuple[Group, ...]
    block_bytes: int  # of one block of the pool
    block_tokens: int  # tokens of a block of the layers that attend
    in_flight: int  # tokens scheduled and not yet settled, which a window keeps beside its own
    token_bytes: int  # bytes that one more token costs while it is inside every window, block rounding apart
    state_bytes: int  # bytes per sequence that do not depend on its length

    def sequence_blocks(self, tokens: int) -> int:
        """Blocks of the pool that one sequence of ``tokens`` takes at most."""
        return sum(group.blocks(tokens, self.in_flight) for group in self.groups)

    def rules(self) -> tuple[BlockGroup, ...]:
        """What the ledger holds for a sequence, group by group."""
        return tuple(group.rule(self.in_flight) for group in self.groups)

    def sequence_bytes(self, tokens: int) -> int:
        """The same in bytes."""
        return self.sequence_blocks(tokens) * self.block_bytes

    def pool_bytes(self, tokens: int, sequences: int) -> int:
        """The pool that holds so many sequences of so many tokens, the null block included; 0 for no cache at all."""
        if not self.groups:
            return 0
        return (self.sequence_blocks(tokens) * sequences + 1) * self.block_bytes

    def pool_blocks(self, size: int) -> int:
        """Whole blocks in a pool of ``size`` bytes, the null block among them."""
        return max(size, 0) // self.block_bytes if self.groups else 0

    def capacity(self, size: int, tokens: int) -> int:
        """Tokens that a pool holds, as vLLM counts them: in sequences of ``tokens``, fractions of one included."""
        each = self.sequence_blocks(tokens)
        return self.pool_blocks(size) * tokens // each if each else 0

    def sequences(self, size: int, tokens: int) -> int:
        """Whole sequences of ``tokens`` that a pool of ``size`` bytes holds at once."""
        each = self.sequence_blocks(tokens)
        return max(self.pool_blocks(size) - 1, 0) // each if each else 0

    def longest(self, size: int, sequences: int, most: int = LONGEST) -> int:
        """Longest context, at most ``most`` tokens, that so many sequences can all have at once; 0 for none."""
        if not self.groups:
            return most
        room = self.pool_blocks(size) - 1
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_blocks(middle) * sequences <= room:
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """What decides the layout beside the model."""

    kv_bytes: float = 2.0  # of a KV element
    conv_bytes: int = 2  # of an element of a convolution's state
    block_tokens: int = 16
    state_align: int = 16  # tokens that an attention block must be a multiple of to be widened to a state
    in_flight: int = 2048
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    prefix_caching: bool = True  # then a state keeps a second block per sequence
    windows: bool = True  # whether layers with a window give back what is out of it


@dataclass(slots=True)
class _Kind:
    """Layers of one kind on one device, and the page that one of them needs for one block."""

    kind: str
    count: int
    page: int
    block_tokens: int
    window: int = 0

    @property
    def is_state(self) -> bool:
        return self.kind == "state"


def kv_layout(shape: Shape, rules: LayoutRules) -> KvLayout:
    """The layout of ``shape`` on one device."""
    kinds = [_kind(layer, shape, rules) for layer in shape.kv]
    attention = [k for k in kinds if not k.is_state]
    token_bytes = sum(k.count * k.page // k.block_tokens for k in attention)
    state_bytes = sum(k.count * k.page for k in kinds if k.is_state)
    kinds = _merge(kinds)
    block = attention[0].block_tokens if attention else rules.block_tokens
    if attention and len(attention) < len(kinds):
        block = _widen(kinds, rules)
    groups, block_bytes = _groups(kinds, 2 if rules.prefix_caching and attention else 1)
    return KvLayout(tuple(groups), block_bytes, block, rules.in_flight, token_bytes, state_bytes)


def _kind(layer: KvLayer, shape: Shape, rules: LayoutRules) -> _Kind:
    count = -(-layer.count // rules.pipeline_parallel)
    ranks = rules.tensor_parallel
    if layer.kind == "state":
        page = -(-layer.conv // ranks) * rules.conv_bytes + -(-layer.recurrent // ranks) * shape.state_bytes
        return _Kind("state", count, page, 0)
    heads = max(layer.heads // ranks, 1)  # a head is never split; where there are fewer than ranks, it is copied
    page = int(heads * layer.width * rules.block_tokens * rules.kv_bytes)
    window = layer.window if rules.windows and layer.kind == "sliding" else 0
    return _Kind("sliding" if window else layer.kind, count, max(page, 1), rules.block_tokens, window)


def _merge(kinds: Sequence[_Kind]) -> list[_Kind]:
    """Kinds that keep the same, as one: a window that is switched off is none."""
    out: list[_Kind] = []
    for k in kinds:
        for other in out:
            if (other.is_state, other.page, other.window) == (k.is_state, k.page, k.window):
                other.count += k.count
                break
        else:
            out.append(_Kind(k.kind, k.count, k.page, k.block_tokens, k.window))
    return out


def _widen(kinds: list[_Kind], rules: LayoutRules) -> int:
    """Make attention's blocks so long that a page of theirs holds a state, and pad the state to it; the new length."""
    state = max(k.page for k in kinds if k.is_state)
    attention = [k for k in kinds if not k.is_state]
    token = attention[0].page // attention[0].block_tokens
    align = max(rules.state_align, rules.block_tokens)
    block = max(align * -(-state // (align * token)), rules.block_tokens)
    for k in attention:
        k.page = k.page // k.block_tokens * block
        k.block_tokens = block
    return block


def _groups(kinds: list[_Kind], state_blocks: int) -> tuple[list[Group], int]:
    """Groups of as many layers each, and the bytes of one block of the pool."""
    if not kinds:
        return [], 1
    alike = {(k.is_state, k.window) for k in kinds}
    if len(alike) == 1:  # one table serves them all, however wide their pages are
        first = kinds[0]
        size = sum(k.count * k.page for k in kinds)
        return [Group(first.kind, 1, first.block_tokens, first.window, state_blocks * first.is_state)], size
    page = max(k.page for k in kinds)
    for k in kinds:
        # A narrower page takes more tokens where they fill the widest one, else it is padded.
        if not k.is_state and page % k.page == 0:
            k.block_tokens *= page // k.page
    counts = [k.count for k in kinds]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = [Group(k.kind, -(-k.count // size), k.block_tokens, k.window, state_blocks * k.is_state) for k in kinds]
    return groups, size * page
