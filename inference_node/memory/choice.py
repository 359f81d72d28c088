"""What a node does with the memory it finds: fills in what was left open, and refuses what cannot fit.

An automatic KV pool keeps the whole under the mark (``COMFORT``, or the share that is set). A context and a number of
sequences that were both asked for must fit in full at once, because that is what was asked for; where a pool's size is
given beside them, it is enough that it holds one sequence, since admission makes the rest wait for room.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference_node.memory.plan import COMFORT, Plan, Planner, Verdict, largest
from inference_node.memory.units import GIB, MIB, round_context

DEFAULT_CONTEXT = 4096
CONCURRENT = 4  # sequences of full length that an automatic context leaves room for
TYPICAL = 1024  # tokens of a usual request, prompt and answer: how many run at once follows from it
CPU_SEQUENCES, GPU_SEQUENCES, FEWEST = 16, 256, 4
CPU_POOL = GIB  # where nothing asks for more: memory of a CPU is for others too
LEAST_POOL = 64 * MIB


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is set; 0 leaves it to the node."""

    context: int = 0
    sequences: int = 0
    pool: int = 0
    share: float = COMFORT  # of the memory, that an automatic pool fills at most


@dataclass(frozen=True, slots=True)
class Choice:
    """What the node takes, or why it cannot: ``refusal`` is empty where it fits."""

    plan: Plan
    refusal: str = ""

    @property
    def tight(self) -> bool:
        """Whether it fits, but over the mark."""
        return not self.refusal and self.plan.verdict is Verdict.TIGHT


def choose(planner: Planner, wanted: Wanted) -> Choice:
    """Fill in what ``wanted`` leaves open."""
    sequences = wanted.sequences or (CPU_SEQUENCES if planner.options.device == "cpu" else GPU_SEQUENCES)
    if wanted.pool:
        return _within_pool(planner, wanted, wanted.pool, sequences)
    if wanted.context and wanted.sequences:
        return _given_both(planner, wanted)
    context = wanted.context or min(planner.shape.max_context, DEFAULT_CONTEXT)
    if not wanted.sequences:
        sequences = _running(planner, wanted, context, sequences)
    pool = _automatic_pool(planner, wanted, context, sequences)
    # The mark is for what is automatic: under it there may be too little for what was asked for, or for anything.
    least = planner.layout(context, sequences).pool_bytes(context, 1) if wanted.context else LEAST_POOL
    if pool < least:
        pool = min(least, planner.room(context, sequences, 1.0)) if not wanted.context else least
    return _within_pool(planner, wanted, pool, sequences)


def _given_both(planner: Planner, wanted: Wanted) -> Choice:
    plan = planner.plan(wanted.context, wanted.sequences)
    if plan.verdict is Verdict.NO:
        many = "1 sequence" if plan.sequences == 1 else f"{plan.sequences:,} sequences"
        return Choice(plan, f"{many} of {plan.context:,} tokens at once do not fit")
    return Choice(planner.plan(wanted.context, wanted.sequences, max(plan.pool, _fill(planner, wanted, plan))))


def _fill(planner: Planner, wanted: Wanted, plan: Plan) -> int:
    """A pool as large as there is room for: what is over serves as prefix cache. A CPU's memory is left to others."""
    room = planner.room(plan.context, plan.sequences, wanted.share)
    return room if planner.options.device == "gpu" else min(room, CPU_POOL)


def _automatic_pool(planner: Planner, wanted: Wanted, context: int, sequences: int) -> int:
    room = planner.room(context, sequences, wanted.share)
    if planner.options.device == "gpu":
        return room
    # Half of what is free, so that a second node finds room; but not more than a few sequences use.
    useful = max(CPU_POOL, planner.layout(context, sequences).pool_bytes(context, CONCURRENT))
    return min(useful, max(room // 2, min(room, LEAST_POOL)))


def _running(planner: Planner, wanted: Wanted, context: int, most: int) -> int:
    """Sequences of a usual length that run at once: as many as an automatic pool holds beside what they take."""

    def held(many: int) -> bool:
        pool = _automatic_pool(planner, wanted, context, many)
        return planner.layout(context, many).sequences(pool, min(TYPICAL, context)) >= many

    return max(largest(most, held), min(FEWEST, most))


def _within_pool(planner: Planner, wanted: Wanted, pool: int, sequences: int) -> Choice:
    """Context and sequences for a pool of a size."""
    own = planner.shape.max_context
    layout = planner.layout(wanted.context or min(own, DEFAULT_CONTEXT), sequences)
    context = wanted.context or _context(layout.longest(pool, CONCURRENT, own), layout.longest(pool, 1, own), own)
    if context < 1:
        plan = planner.plan(min(own, DEFAULT_CONTEXT), 1)
        return Choice(plan, "the model leaves no room for a KV cache")
    if not wanted.sequences:
        holds = planner.layout(context, sequences).sequences(pool, min(TYPICAL, context))
        sequences = max(min(holds, sequences), min(FEWEST, sequences))
    plan = planner.plan(context, sequences, pool)
    if plan.verdict is Verdict.NO:
        return Choice(plan, "what was set does not fit" if wanted.pool else "not even one sequence fits")
    if plan.layout.sequences(pool, context) < 1:
        holds = plan.layout.longest(pool, 1, context)
        return Choice(plan, f"the KV cache holds {holds:,} tokens, less than one sequence of {context:,}")
    return Choice(plan)


def _context(several: int, one: int, own: int) -> int:
    """Longest sequence where none is set: several of them fit, unless that were uselessly short."""
    return round_context(min(own, max(several, min(DEFAULT_CONTEXT, one))))
