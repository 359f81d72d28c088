"""The cases that the dispatch policy is held to, and what each must show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtest.sim.cluster import Shape
from loadtest.sim.jobs import Trace
from loadtest.sim.policies import LAYA
from loadtest.sim.record import Figures
from loadtest.sim.run import Setting
from loadtest.sim.traces import Ask, make

WITHIN = 1.03
"""The policy's times may be so much of the best one's."""
FASTER = 1.5
"""And where prompts share prefixes its p99 must be so much below power of two."""
FULLEST = 0.95
"""With several routers no node's KV may be promised beyond this; a policy that lets it be is no match either."""
MORE_REJECTS = 0.005
"""A policy that refuses this much more of the requests than ours is no match: it serves fewer."""

_SMALL = Shape(kv_tokens=65_536)


@dataclass(frozen=True, slots=True)
class Case:
    """A trace on a cluster. ``longest`` is in tokens of prompt and max_tokens."""

    kind: str
    load: float
    setting: Setting = field(default_factory=Setting)
    burstiness: float = 1.0
    longest: int = 32_768
    shares: bool = False
    """Prompts share prefixes."""
    about: str = ""

    def trace(self, count: int, seed: int) -> Trace:
        """Its requests."""
        nodes = self.setting.nodes
        return make(self.kind, Ask(count, nodes, self.load, self.burstiness, longest=self.longest), seed)


CASES: dict[str, Case] = {
    "poisson": Case("azure", 0.7, about="Azure conversation lengths, Poisson arrivals"),
    "bursty": Case("azure", 0.6, burstiness=3.0, about="the same in bursts: coefficient of variation 3"),
    "heavy": Case("heavy", 0.6, Setting(shape=_SMALL), about="Pareto lengths, little memory"),
    "sharegpt": Case("sharegpt", 0.7, Setting(shape=_SMALL), shares=True, about="conversations, little memory"),
    "shared": Case("shared", 0.9, Setting(shape=_SMALL), shares=True, about="64 system prompts of 2,048 tokens"),
    "mooncake": Case(
        "mooncake", 0.8, Setting(shape=Shape(kv_tokens=131_072)), shares=True, about="Mooncake lengths, long prompts"
    ),
    "slow": Case("azure", 0.6, Setting(slow=3), about="3 of 16 nodes at 0.3 of their speed for half the time"),
    "dying": Case("azure", 0.6, Setting(dying=3), about="3 of 16 nodes die and come back after 10 s"),
    "lossy": Case("azure", 0.6, Setting(routers=2, report_loss=0.2), about="2 routers, a fifth of the reports lost"),
    "stale": Case(
        "azure", 0.6, Setting(routers=8, report_delay=0.1, shape=_SMALL), longest=8192,
        about="8 routers, reports 100 ms late, an eighth of the memory",
    ),
    "brim": Case(
        "azure", 0.6, Setting(routers=8, report_delay=0.1, shape=Shape(kv_tokens=20_480)), longest=2048,
        about="8 routers, reports 100 ms late, a request takes 6 % of a node, KV is scarce",
    ),
    "stale-shared": Case(
        "shared", 0.8, Setting(routers=8, report_delay=0.1, shape=_SMALL), shares=True,
        about="8 routers, reports 100 ms late, 64 system prompts",
    ),
    "stale-sharegpt": Case(
        "sharegpt", 0.7, Setting(routers=8, report_delay=0.1, shape=_SMALL), shares=True, longest=8192,
        about="8 routers, reports 100 ms late, conversations",
    ),
}  # fmt: skip


def failures(case: Case, medians: Mapping[str, Figures]) -> list[str]:
    """What the policy does not reach in a case, in words; empty when it reaches everything."""
    ours = medians.get(LAYA)
    if ours is None:
        return []
    out = []
    for what in ("ttft_mean", "ttft_p99"):
        got = getattr(ours, what)
        rivals = [
            (getattr(figures, what), name)
            for name, figures in medians.items()
            if name != LAYA
            and figures.rejects <= ours.rejects + MORE_REJECTS * ours.requests
            and (case.setting.routers == 1 or figures.kv_peak <= FULLEST)
        ]
        best, name = min(rivals, default=(math.inf, ""))
        if not got <= WITHIN * best:
            out.append(f"{what} {got * 1e3:.1f} ms is over {WITHIN:.2f} times that of {name}, {best * 1e3:.1f} ms")
    rival = medians.get("power-of-two")
    if case.shares and rival is not None and not ours.ttft_p99 * FASTER <= rival.ttft_p99:
        out.append(f"p99 {ours.ttft_p99 * 1e3:.1f} ms is not {FASTER} times below {rival.ttft_p99 * 1e3:.1f} ms")
    if case.setting.routers > 1 and not ours.kv_peak <= FULLEST:
        out.append(f"a node's KV was {ours.kv_peak:.1%} promised; {FULLEST:.0%} is the most it may be")
    if ours.preemptions:
        out.append(f"{ours.preemptions} preemptions")
    return out
