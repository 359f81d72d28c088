"""The sums as people read them: a table of 80 columns, the ways out, and the same as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference_node.memory.advice import Change
from inference_node.memory.plan import COMFORT, Plan, Planner, Verdict
from inference_node.memory.units import GIB, gib, round_context, short, tokens

WIDTH = 80
_WORDS = 50  # of a way out, on the line of its result
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64)


def sums(plan: Plan, refusal: str = "") -> list[str]:
    """The table: each part, its origin and its GiB, the total, the memory and the verdict."""
    lines = [*_head(plan), ""]
    for name, origin, size in _parts(plan):
        lines.append(_row(name, origin, gib(size)))
    lines += [f"  {'─' * (WIDTH - 4)}", _row("total", "", gib(plan.total))]
    lines.append(_row("memory", f"of which the mark of 80 % is {gib(plan.memory * COMFORT)}", gib(plan.memory)))
    return [*lines, "", *_wrap(verdict(plan, refusal))]


def verdict(plan: Plan, refusal: str = "") -> str:
    """One sentence: whether it fits, and how much is left or missing."""
    share = f"{plan.total * 1000 // max(plan.memory, 1) / 10} % of the memory"
    if plan.verdict is Verdict.NO:
        words = f"Does not fit: {short(plan.total - plan.memory)} too much."
    elif plan.verdict is Verdict.TIGHT:
        words = f"Fits, but over the mark: {share}; {short(plan.memory - plan.total)} left for surprises."
    else:
        words = f"Fits under 80 %: {share}; {short(plan.memory - plan.total)} left."
    return words if plan.verdict is Verdict.NO or not refusal else f"Does not fit: {refusal}."


def _head(plan: Plan) -> list[str]:
    shape = plan.shape
    experts = f", {shape.experts} experts" if shape.experts else ""
    count = f"{shape.params / 1e9:.2f} B" if shape.params >= 1e9 else f"{shape.params / 1e6:.1f} M"
    about = f"{count} parameters{experts}, context {shape.max_context:,}"
    many = "1 sequence" if plan.sequences == 1 else f"{plan.sequences:,} sequences"
    if plan.shares:
        many = f"up to {many}, each"
    notes = list(shape.notes)
    if plan.context > shape.max_context:
        notes.append(f"{plan.context:,} tokens are more than its own {shape.max_context:,}; the engine refuses that")
    where = "CPU" if plan.options.device == "cpu" else "GPU"
    ranks = plan.options.ranks
    each = f", each of {ranks}" if ranks > 1 and where == "GPU" else ""
    name = shape.name if len(shape.name) <= 40 else "…" + shape.name[-39:]
    return [
        f"{name}: {about}",
        f"{many} of {plan.context:,} tokens on a {where} with {short(plan.memory)}{each}",
        *(line for note in notes for line in _wrap(f"Note: {note}.")),
    ]


def _parts(plan: Plan) -> list[tuple[str, str, int]]:
    layout = plan.layout
    null = layout.block_bytes if layout.groups else 0
    cpu = plan.options.device == "cpu"
    per_token = f"{layout.token_bytes:,} bytes a token" if layout.token_bytes else "no cache that grows"
    state = f" + {short(layout.state_bytes)}" if layout.state_bytes else ""
    reserve = "processes of node and engine" if cpu else "driver, libraries, graphs"
    rows = [("weights", _weights(plan), plan.weights)]
    needed = layout.pool_bytes(plan.context, plan.sequences)
    if not plan.shares:
        each = short(layout.sequence_bytes(plan.context))
        rows.append(("KV cache", f"{plan.sequences:,} of {each}: {per_token}{state}", (needed - null) * plan.pools))
        if plan.pool - needed >= null > 0:
            rows.append(("KV cache, more", "prefixes of earlier requests", (plan.pool - needed) * plan.pools))
    else:
        whole = layout.sequences(plan.pool, plan.context)
        origin = f"{whole:,} whole, or shorter ones: {per_token}{state}"
        rows.append(("KV cache", origin, max(plan.pool - null, 0) * plan.pools))
    rows += [
        ("null block", f"vLLM keeps one block of {layout.block_tokens} tokens", null * plan.pools),
        ("prefill peak", f"one layer of a step of {plan.step:,} tokens", plan.prefill),
        ("sampler", f"{plan.sequences:,} times {plan.shape.vocab:,} logits", plan.sampler),
        ("runtime reserve", reserve, plan.runtime),
    ]
    return [row for row in rows if row[2]]


def _weights(plan: Plan) -> str:
    how = plan.options.quantization or plan.shape.quantization
    ranks = f", one part of {plan.options.ranks}" if plan.options.ranks > 1 and plan.options.device == "gpu" else ""
    return f"{how or f'{plan.weight_bytes * 8} bits'}{ranks}, by {plan.source or 'its shape'}"


def _row(name: str, origin: str, size: str) -> str:
    room = WIDTH - 4 - 17 - 10
    if len(origin) > room:
        origin = origin[: room - 1] + "…"
    return f"  {name:<17}{origin:<{room}}{size:>10}"


def ways_out(found: Sequence[Change], *, flags: bool = True) -> list[str]:
    """What to change, one way a line; by command-line flags or by configuration keys."""
    return ["To make it fit:", *(line for change in found for line in _way(change, flags))]


def _way(change: Change, flags: bool) -> list[str]:
    if "memory" in change.settings:
        return [f"  {change.settings['memory'] // GIB:,} GiB of memory, to be under 80 % ({change.why})"]
    words = (" " if flags else ", ").join(_setting(name, value, flags) for name, value in change.settings.items())
    result = f"{short(change.total):>9}, {change.why or change.verdict}"
    if len(words) + len(result) + 4 <= WIDTH:
        return [f"  {words:<{min(_WORDS, WIDTH - 4 - len(result))}}  {result}"]
    return [f"  {words}", f"  {result:>{WIDTH - 4}}"]


_KEYS = {"kv_dtype": "engine_args.kv_cache_dtype", "tensor_parallel": "engine_args.tensor_parallel_size"}
_FLAGS = {"tensor_parallel": "tensor-parallel-size"}


def _setting(name: str, value: Any, flags: bool) -> str:
    if name == "quantization" and not flags:
        return f"a checkpoint in {value}"
    if flags:
        return f"--{_FLAGS.get(name, name.replace('_', '-'))} {value}"
    return f"{_KEYS.get(name, name)}: {value}"


def reach(planner: Planner, plan: Plan) -> list[str]:
    """The largest context for a given concurrency, and the reverse, both under the mark."""
    own = plan.shape.max_context
    contexts = [planner.longest_context(n) for n in _SEQUENCES]
    if not any(contexts):
        return ["Under 80 %, not one sequence has room."]
    lengths = steps(own, len(_SEQUENCES))
    most = [planner.most_sequences(n) for n in lengths]
    words = ["own" if c >= own else f"{round_context(c):,}" if c else "-" for c in contexts]
    return [
        f"Under 80 %, the longest context for so many sequences at once (own: {own:,}):",
        _cells("sequences", [f"{n:,}" for n in _SEQUENCES]),
        _cells("context", words),
        "and the most sequences at once of such a context:",
        _cells("context", [tokens(n) for n in lengths]),
        _cells("sequences", [f"{n:,}" if n else "-" for n in most]),
    ]


def steps(own: int, most: int) -> list[int]:
    """At most ``most`` contexts to look at: powers of two up to the model's own, and that."""
    powers = [1 << k for k in range(9, 27) if 1 << k < own]
    return [*powers[-(most - 1) :], own] if most > 1 else [own]


def _cells(name: str, cells: Sequence[str]) -> str:
    return f"  {name:<10}" + "".join(f"{cell:>9}" for cell in cells)


def _wrap(text: str) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def as_data(planner: Planner, plan: Plan, found: Sequence[Change]) -> dict[str, Any]:
    """Everything as plain data: sizes in bytes, lengths in tokens."""
    shape, layout = plan.shape, plan.layout
    return {
        "model": shape.name,
        "parameters": shape.params,
        "max_context": shape.max_context,
        "quantization": plan.options.quantization or shape.quantization,
        "notes": list(shape.notes),
        "device": plan.options.device,
        "memory": plan.memory,
        "max_seq_len": plan.context,
        "max_num_seqs": plan.sequences,
        "kv_bytes_per_token": layout.token_bytes,
        "kv_bytes_per_sequence": layout.sequence_bytes(plan.context),
        "kv_state_bytes": layout.state_bytes,
        "kv_block_bytes": layout.block_bytes,
        "kv_block_tokens": layout.block_tokens,
        "weights": plan.weights,
        "kv_cache": plan.pool * plan.pools,
        "kv_capacity_tokens": plan.capacity,
        "prefill_peak": plan.prefill,
        "sampler": plan.sampler,
        "runtime_reserve": plan.runtime,
        "total": plan.total,
        "fits": plan.verdict is not Verdict.NO,
        "verdict": str(plan.verdict),
        "longest_context": {str(n): planner.longest_context(n) for n in _SEQUENCES},
        "most_sequences": {str(n): planner.most_sequences(n) for n in steps(shape.max_context, len(_SEQUENCES))},
        "changes": [{**c.settings, "total": c.total, "verdict": str(c.verdict)} for c in found],
    }
