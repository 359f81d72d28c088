"""The figures of a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from loadtest.traces.items import Loaded
from loadtest.traces.send import Line, Sent
from loadtest.users.record import Slo

_SHARES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


def quantile(values: Sequence[float], share: float) -> float:
    """By nearest rank; 0 of nothing."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def good(line: Line, slo: Slo) -> bool:
    """Whether a call was within the SLO."""
    return not line.reason and line.ttft <= slo.ttft and line.itl <= slo.itl


def figures(sent: Sent, loaded: Loaded, slo: Slo) -> dict[str, Any]:
    """Everything, for a script. Times are milliseconds but for ``seconds``."""
    lines = sent.lines
    answered = [line for line in lines if not line.reason]
    prompts = sum(line.prompt_tokens for line in answered)
    seconds = max(sent.seconds, 1e-9)
    met = sum(good(line, slo) for line in lines)
    out: dict[str, Any] = {
        "trace": loaded.name,
        "requests": len(loaded.items),
        "begun": sent.items,
        "calls": len(lines),
        "answered": len(answered),
        "rejected": dict(Counter(line.reason for line in lines if line.reason)),
        "dropped": sent.dropped,
        "cut_off": sent.cut,
        "most_in_flight": sent.most,
        "seconds": sent.seconds,
        "ended": sent.ended,
        "prompt_tokens": prompts,
        "cached_tokens": sum(line.cached_tokens for line in answered),
        "reusable_share": loaded.reusable(),
        "output_tokens": sum(line.tokens for line in lines),
        "tokens_per_second": sum(line.tokens for line in lines) / seconds,
        "good": met,
        "goodput_per_second": met / seconds,
        "changed": dict(loaded.notes.counts),
    }
    measured = {
        "ttft": [line.ttft for line in answered],
        "itl": [line.itl for line in answered if line.itl],
        "total": [line.total for line in answered],
        "late": [line.late for line in lines],
    }
    for name, values in measured.items():
        out[f"{name}_ms"] = {label: quantile(values, share) * 1e3 for label, share in _SHARES}
    return out


def text(found: dict[str, Any], slo: Slo) -> str:
    """For people."""
    calls = found["calls"]
    share = found["good"] / calls if calls else 0.0
    cached = found["cached_tokens"] / found["prompt_tokens"] if found["prompt_tokens"] else 0.0
    share_again = found["reusable_share"]
    again = f" (as blocks of the trace {share_again:.1%} come again)" if share_again else ""
    out = [
        f"{found['trace']}: {found['begun']} of {found['requests']} begun in {found['seconds']:.1f} s, "
        f"{calls} calls, {found['answered']} answered; at most {found['most_in_flight']} in flight",
        f"goodput {found['goodput_per_second']:.2f}/s: {share:.1%} of the calls within {slo.ttft * 1e3:g} ms to the "
        f"first token and {slo.itl * 1e3:g} ms between tokens",
        f"{found['tokens_per_second']:.0f} tokens/s out; {cached:.1%} of the prompts' tokens came from a cache{again}",
        "",
        "| ms | " + " | ".join(label for label, _ in _SHARES) + " |",
        "| --- |" + " --- |" * len(_SHARES),
    ]
    names = {"ttft": "to the first token", "itl": "between tokens", "total": "whole call", "late": "sent late by"}
    for name, label in names.items():
        out.append(f"| {label} | " + " | ".join(f"{found[f'{name}_ms'][p]:.1f}" for p, _ in _SHARES) + " |")
    for reason, count in sorted(found["rejected"].items()):
        out.append(f"rejected {reason}: {count}")
    if found["dropped"]:
        out.append(f"not sent, for the cap of what is in flight (--max-in-flight): {found['dropped']}")
    if found["cut_off"]:
        out.append(f"still running at the end, and cut off: {found['cut_off']}")
    if found["ended"]:
        out.append(f"ended early: {found['ended']}; what came so far is kept")
    return "\n".join(out)
