"""What to change where a plan does not fit or is tight: settings with numbers, each of them summed again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from inference_node.memory.plan import COMFORT, Plan, Planner, Verdict
from inference_node.memory.units import GIB, round_context, short

_SCHEMES = ("fp8", "awq")  # eight bits, then four
_RANKS = (2, 4, 8, 16)
_LEAST_CONTEXT = 256  # a shorter one is no way out
_MOST = 6


@dataclass(frozen=True, slots=True)
class Change:
    """One way out, by the names of the settings, and what it comes to."""

    settings: dict[str, Any] = field(default_factory=dict)
    total: int = 0  # bytes
    verdict: Verdict = Verdict.EASY
    why: str = ""  # what it means, where that is not the verdict


def changes(planner: Planner, plan: Plan) -> list[Change]:
    """Ways to make ``plan`` fit under the mark, single changes first; at most six, memory last."""
    found = [*_fewer(planner, plan), *_narrower(planner, plan), *_spread(planner, plan)]
    if plan.verdict is Verdict.NO:
        said = [change.settings for change in found]
        found += (change for change in _together(planner, plan) if change.settings not in said)
    return [*found[: _MOST - 1], more_memory(plan)]


def pools(planner: Planner, plan: Plan) -> list[Change]:
    """Ways out where the size of the KV pool is set, or may be: ``plan`` has the pool that does not do."""
    layout, context = plan.layout, plan.context
    one = layout.pool_bytes(context, 1)
    room = next((r for share in (COMFORT, 1.0) if (r := planner.room(context, plan.sequences, share)) >= one), 0)
    found = []
    if room and (plan.verdict is Verdict.NO or plan.pool < one):
        size = room // layout.block_bytes * layout.block_bytes if plan.verdict is Verdict.NO else one
        whole = layout.sequences(size, context)
        found.append(_pool(planner, plan, size, f"{whole:,} at full length, others wait"))
    if plan.verdict is not Verdict.NO:
        longest = round_context(layout.longest(plan.pool, 1, context))
        if longest:
            found.append(_change(planner.plan(longest, plan.sequences, plan.pool), max_seq_len=longest))
    return found


def _pool(planner: Planner, plan: Plan, size: int, why: str) -> Change:
    best = planner.plan(plan.context, plan.sequences, size)
    return Change({"kv_cache_memory_bytes": size}, best.total, best.verdict, why)


def _fewer(planner: Planner, plan: Plan) -> Iterator[Change]:
    """Fewer sequences, or shorter ones: under the mark where that goes, else within the memory."""
    for share in (COMFORT, 1.0):
        most = planner.most_sequences(plan.context, share)
        if 0 < most < plan.sequences:
            yield _change(planner.plan(plan.context, most), max_num_seqs=most)
            break
    for share in (COMFORT, 1.0):
        longest = round_context(planner.longest_context(plan.sequences, share, plan.context))
        if _LEAST_CONTEXT <= longest < plan.context:
            yield _change(planner.plan(longest, plan.sequences), max_seq_len=longest)
            break


def _narrower(planner: Planner, plan: Plan) -> Iterator[Change]:
    """The cache, the weights or both in fewer bits, the rest as asked."""
    if _can_narrow_cache(planner):
        yield from _if_it_fits(planner, plan, kv_dtype="fp8")
    if plan.shape.quantization or planner.options.quantization:
        return
    for scheme in _SCHEMES:
        yield from _if_it_fits(planner, plan, quantization=scheme)
    if _can_narrow_cache(planner):
        yield from _if_it_fits(planner, plan, quantization=_SCHEMES[-1], kv_dtype="fp8")


def _can_narrow_cache(planner: Planner) -> bool:
    """vLLM keeps the cache of latent attention in full on a CPU."""
    latent = any(layer.kind == "latent" for layer in planner.shape.kv)
    return planner.options.kv_dtype in ("", "auto") and not (latent and planner.options.device == "cpu")


def _spread(planner: Planner, plan: Plan) -> Iterator[Change]:
    """More GPUs of the same size."""
    options = planner.options
    if options.device != "gpu" or options.ranks > 1:
        return
    for ranks in _RANKS:
        one = list(_if_it_fits(planner, plan, tensor_parallel=ranks))
        if one:
            yield one[0]
            return


def _together(planner: Planner, plan: Plan) -> Iterator[Change]:
    """Several changes at once: fewer bits or more GPUs, and then as many sequences as fit, or the longest that do."""
    spread = set()  # kinds of combination for which enough GPUs are found
    for settings in _combinations(planner, plan):
        kind = settings.get("quantization", "")
        if "tensor_parallel" in settings and kind in spread:
            continue
        other = planner.with_options(**settings)
        most = min(other.most_sequences(plan.context), plan.sequences)
        longest = round_context(other.longest_context(plan.sequences, COMFORT, plan.context))
        if most == plan.sequences:
            spread.add(kind)
            if len(settings) > 1:  # a single change has been said
                yield _change(other.plan(plan.context, plan.sequences), **settings)
        elif most:
            yield _change(other.plan(plan.context, most), **settings, max_num_seqs=most)
        elif longest >= _LEAST_CONTEXT:
            yield _change(other.plan(longest, plan.sequences), **settings, max_seq_len=longest)
        else:
            alone = round_context(other.longest_context(1, COMFORT, plan.context))
            if alone >= _LEAST_CONTEXT:
                yield _change(other.plan(alone, 1), **settings, max_seq_len=alone, max_num_seqs=1)


def _combinations(planner: Planner, plan: Plan) -> Iterator[dict[str, Any]]:
    narrow = _can_narrow_cache(planner)
    if not (plan.shape.quantization or planner.options.quantization):
        for scheme in _SCHEMES:
            yield {"quantization": scheme, "kv_dtype": "fp8"} if narrow else {"quantization": scheme}
    elif narrow:
        yield {"kv_dtype": "fp8"}
    if planner.options.device == "gpu" and planner.options.ranks == 1:
        for ranks in _RANKS:
            yield {"tensor_parallel": ranks}
        if not (plan.shape.quantization or planner.options.quantization):
            for ranks in _RANKS:
                yield {"quantization": _SCHEMES[-1], "tensor_parallel": ranks}


def _if_it_fits(planner: Planner, plan: Plan, **settings: Any) -> Iterator[Change]:
    other = planner.with_options(**settings).plan(plan.context, plan.sequences)
    if other.verdict is Verdict.EASY or (other.verdict is Verdict.TIGHT and plan.verdict is Verdict.NO):
        yield _change(other, **settings)


def more_memory(plan: Plan) -> Change:
    """How much memory the plan needs to be under the mark."""
    needed = -(-int(plan.total / COMFORT) // GIB) * GIB
    return Change({"memory": needed}, plan.total, Verdict.EASY, f"{short(plan.total)} is the least")


def _change(plan: Plan, **settings: Any) -> Change:
    return Change(settings, plan.total, plan.verdict)
