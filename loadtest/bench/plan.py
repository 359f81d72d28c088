"""What a benchmark does, as data: the load, how long and how often, and the cluster to start when none is named."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from loadtest.sim.traces import KINDS
from shared.config.loader import Loader

LONGEST_RUN = 86_400.0  # seconds of all rounds together
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # a folder is named after it
MOST_REQUESTS = 1_000_000  # of one round


class BadPlan(ValueError):
    """A plan that makes no sense; the message names the field and says what it may be."""


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of request in the mix."""

    kind: str
    """fixed, a generator of loadtest/sim/traces.py, or a JSONL file in Mooncake's format.

    A file is looked for beside the plan's own first, then from the working folder.
    """
    share: float = 1.0
    """Weight among the kinds of the plan."""
    prompt: int = 256
    """Tokens of a ``fixed`` prompt; for the others, the most that one may have."""
    output: int = 64
    """New tokens of a ``fixed`` answer; for the others, the most that one may have."""
    priority: int = 0
    """Sent with the request; lower is earlier."""
    sessions: bool = False
    """Send the name of the conversation along."""
    cancel: float = 0.0
    """Share of requests whose client goes away in the middle of the answer."""


class Peak(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stretch of a round in which requests come more (or less) often."""

    start: float
    """Seconds into the round."""
    seconds: float
    times: float
    """Of the plan's rate."""


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The cluster that is started when no target is named."""

    engine: Literal["sim", "canned", "vllm"] = "sim"
    count: int = 2
    slow: int = 0
    """Of them, nodes that are ``slow_times`` slower (sim)."""
    slow_times: float = 4.0
    kill: float = 0.0
    """Seconds into a round at which one node dies (SIGKILL); it comes back after ``back`` more. 0: none does."""
    back: float = 2.0
    kv_tokens: int = 65_536
    prefill_tokens_per_second: float = 8000.0
    decode_base_ms: float = 6.0
    decode_per_sequence_ms: float = 0.35


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A named plan."""

    name: str
    works: tuple[Work, ...]
    rate: float
    """Requests a second, on average outside of peaks."""
    about: str = ""
    seconds: float = 20.0
    """Length of a round; what was sent by then may still be answered within ``patience``."""
    rounds: int = 3
    warm_up: float = 1.0
    """Seconds of the same load before the first round that nobody counts."""
    arrivals: Literal["poisson", "constant", "bursts"] = "poisson"
    """``bursts``: times between arrivals from a gamma distribution with a coefficient of variation of 3."""
    peaks: tuple[Peak, ...] = ()
    slo_ttft: float = 2.0
    """Seconds to the first token within which an answer is good."""
    slo_itl: float = 0.1
    """Mean seconds between its tokens within which an answer is good."""
    patience: float = 30.0
    """Seconds after which a client gives up."""
    most_in_flight: int = 512
    """Requests in flight at which the bench itself sends no more; those are counted as not sent."""
    nodes: Nodes = Nodes()

    @property
    def longest(self) -> float:
        """Seconds that the whole may take, starts of processes left aside."""
        return self.warm_up + self.rounds * (self.seconds + self.patience)

    @property
    def usual(self) -> float:
        """Seconds that it takes when answers come soon."""
        return self.warm_up + self.rounds * (self.seconds + 1.0)


def check(plan: Plan) -> Plan:
    """The plan. Raises BadPlan."""
    shown = f"must be 1 to 64 letters, digits, '-', '_' and '.', not {plan.name[:80]!r}"
    _need(_NAME.fullmatch(plan.name) is not None, "name", shown)
    _need(0 < plan.rate <= 100_000, "rate", f"must be over 0 and up to 100000 requests a second, not {plan.rate}")
    _need(0.2 <= plan.seconds <= LONGEST_RUN, "seconds", f"must be 0.2 to {LONGEST_RUN:g}, not {plan.seconds}")
    _need(1 <= plan.rounds <= 1000, "rounds", f"must be 1 to 1000, not {plan.rounds}")
    _need(plan.rounds * plan.seconds <= LONGEST_RUN, "rounds", f"times seconds must stay below {LONGEST_RUN:g}")
    _need(0 <= plan.warm_up <= 600, "warm_up", f"must be 0 to 600 seconds, not {plan.warm_up}")
    _need(0.1 <= plan.patience <= 3600, "patience", f"must be 0.1 to 3600 seconds, not {plan.patience}")
    _need(1 <= plan.most_in_flight <= 20_000, "most_in_flight", f"must be 1 to 20000, not {plan.most_in_flight}")
    _need(plan.slo_ttft > 0 and plan.slo_itl > 0, "slo_ttft, slo_itl", "must be over 0 seconds")
    _need(bool(plan.works), "works", "must name one kind of request or more")
    for i, work in enumerate(plan.works):
        _check_work(work, f"works[{i}]")
    for i, peak in enumerate(plan.peaks):
        sound = peak.start >= 0 and peak.seconds > 0 and 0 <= peak.times <= 1000
        _need(sound, f"peaks[{i}]", "needs start >= 0, seconds > 0 and times from 0 to 1000")
    _need(expected(plan) <= MOST_REQUESTS, "rate", f"makes over {MOST_REQUESTS:,} requests a round")
    _check_nodes(plan.nodes)
    return plan


def _beside(plan: Plan, folder: Path) -> Plan:
    """The plan with the traces that lie beside its file; others are looked for where the command runs."""
    works = tuple(
        msgspec.structs.replace(work, kind=str(folder / work.kind))
        if work.kind.endswith(".jsonl") and (folder / work.kind).is_file()
        else work
        for work in plan.works
    )
    return msgspec.structs.replace(plan, works=works)


def _check_work(work: Work, where: str) -> None:
    known = ", ".join(("fixed", *KINDS))
    is_kind = work.kind == "fixed" or work.kind in KINDS or work.kind.endswith(".jsonl")
    _need(is_kind, f"{where}.kind", f"must be {known} or a .jsonl file, not {work.kind!r}")
    _need(work.share > 0 and math.isfinite(work.share), f"{where}.share", f"must be over 0, not {work.share}")
    _need(1 <= work.prompt <= 1 << 20, f"{where}.prompt", f"must be 1 to {1 << 20} tokens, not {work.prompt}")
    _need(1 <= work.output <= 1 << 17, f"{where}.output", f"must be 1 to {1 << 17} tokens, not {work.output}")
    _need(0 <= work.cancel <= 1, f"{where}.cancel", f"must be 0 to 1, not {work.cancel}")


def _check_nodes(nodes: Nodes) -> None:
    _need(1 <= nodes.count <= 64, "nodes.count", f"must be 1 to 64, not {nodes.count}")
    _need(0 <= nodes.slow <= nodes.count, "nodes.slow", f"must be 0 to {nodes.count}, not {nodes.slow}")
    _need(1 <= nodes.slow_times <= 1000, "nodes.slow_times", f"must be 1 to 1000, not {nodes.slow_times}")
    _need(nodes.kill >= 0 and nodes.back >= 0, "nodes.kill, nodes.back", "must be 0 seconds or more")
    _need(not nodes.kill or nodes.count > 1, "nodes.kill", "needs two nodes or more")
    special = nodes.slow or nodes.kill
    _need(not special or nodes.engine == "sim", "nodes.engine", "must be sim for nodes that are slow or die")
    _need(1024 <= nodes.kv_tokens <= 1 << 26, "nodes.kv_tokens", f"must be 1024 to {1 << 26}, not {nodes.kv_tokens}")
    _need(nodes.prefill_tokens_per_second > 0, "nodes.prefill_tokens_per_second", "must be over 0")


def _need(sound: bool, field: str, what: str) -> None:
    if not sound:
        raise BadPlan(f"{field}: {what}")


def expected(plan: Plan) -> float:
    """Requests of a round, on average."""
    return sum(seconds * plan.rate * times for seconds, times in stretches(plan))


def stretches(plan: Plan) -> list[tuple[float, float]]:
    """The round cut where peaks begin and end: seconds, and how many times the rate it is there."""
    cuts = {0.0, plan.seconds}
    for peak in plan.peaks:
        cuts |= {min(max(at, 0.0), plan.seconds) for at in (peak.start, peak.start + peak.seconds)}
    order = sorted(cuts)
    return [(end - start, times_at(plan, start)) for start, end in pairwise(order)]


def times_at(plan: Plan, at: float) -> float:
    """How many times the plan's rate it is at that second of a round; peaks that overlap multiply."""
    times = 1.0
    for peak in plan.peaks:
        if peak.start <= at < peak.start + peak.seconds:
            times *= peak.times
    return times


def read(path: Path) -> Plan:
    """A plan from a YAML file. Raises BadPlan or OSError."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise BadPlan(f"{path}{where}: not YAML ({getattr(error, 'problem', None) or error})") from None
    try:
        return check(_beside(msgspec.convert(data, Plan), path.parent))
    except (msgspec.ValidationError, BadPlan) as error:
        raise BadPlan(f"{path}: {error}") from None
