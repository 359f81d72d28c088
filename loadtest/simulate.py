"""Simulates a cluster on virtual time: the real dispatch, admission, ledger and reports around simulated engines.

    python -m loadtest.simulate                              # one trace, all policies
    python -m loadtest.simulate --trace FILE.jsonl           # a trace in Mooncake's format
    python -m loadtest.simulate --suite [--cases shared,stale]   # what the dispatch policy is held to
    python -m loadtest.simulate --nodes 1000 --requests 1000000 --policies laya

Every policy gets the same requests on the same nodes, with reports as late and as lossy. Figures are medians over the
seeds. Exit code 1: the policy misses an aim of the suite; 2: bad options or a bad trace.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from loadtest.sim import mooncake
from loadtest.sim.cluster import Shape
from loadtest.sim.jobs import Trace
from loadtest.sim.policies import LAYA, POLICIES
from loadtest.sim.record import Figures, Slo
from loadtest.sim.report import median, plot, table
from loadtest.sim.run import GaveUp, Setting, run
from loadtest.sim.suite import CASES, failures
from loadtest.sim.traces import KINDS, Ask, make

Medians = dict[str, Figures]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the options say and print it."""
    options = _parser().parse_args(argv)
    gc.set_threshold(100_000, 50, 50)  # a run makes little garbage that refers to itself
    try:
        names = _names(options.policies, (LAYA, *POLICIES), "policy")
        if options.suite:
            return _suite(options, names)
        setting = _setting(options)
        found = _compare(names, lambda seed: _trace(options, setting, seed), setting, options)
    except (OSError, ValueError, GaveUp) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    title = f"{options.trace}, {options.requests} requests, {options.nodes} nodes, {options.routers} router(s)"
    _show(title, found, options.json)
    if options.plot and not plot(Path(options.plot), title, found):
        print("simulate: matplotlib is not installed, so there is no picture", file=sys.stderr)
    return 0


def _suite(options: argparse.Namespace, names: list[str]) -> int:
    missed = 0
    for name in _names(options.cases, tuple(CASES), "case"):
        case = CASES[name]
        setting = replace(case.setting, max_wall=options.max_seconds)

        def trace(seed: int, name: str = name) -> Trace:
            return CASES[name].trace(options.requests, seed)

        found = _compare(names, trace, setting, options)
        wrong = failures(case, found)
        missed += bool(wrong)
        _show(f"{name}: {case.about}", found, options.json)
        if not options.json:
            print("  " + ("MISSED: " + "; ".join(wrong) if wrong else "all aims met") + "\n", flush=True)
        if options.plot:
            path = Path(options.plot)
            plot(path.with_stem(f"{path.stem}-{name}"), f"{name}: {case.about}", found)
    return 1 if missed else 0


def _compare(
    names: Sequence[str], trace: Callable[[int], Trace], setting: Setting, options: argparse.Namespace
) -> Medians:
    found: Medians = {}
    for name in names:
        runs = []
        for seed in range(options.seed, options.seed + options.seeds):
            runs.append(run(trace(seed), setting, name, seed))
            gc.collect()
        found[name] = median(runs)
        events = sum(figures.events for figures in runs)
        wall = sum(figures.wall_seconds for figures in runs)
        print(
            f"  {name}: {events:,} events in {wall:.1f} s, {events / max(wall, 1e-9):,.0f} a second",
            file=sys.stderr,
            flush=True,
        )
    return found


def _show(title: str, found: Medians, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"title": title, "policies": {name: figures.as_dict() for name, figures in found.items()}}))
    else:
        print(f"{title}\n{table(found)}", flush=True)


def _trace(options: argparse.Namespace, setting: Setting, seed: int) -> Trace:
    longest = min(options.longest or 32_768, setting.shape.kv_tokens // 2)
    if options.trace in KINDS:
        ask = Ask(options.requests, options.nodes, options.load, options.burstiness, longest=longest)
        return make(options.trace, ask, seed)
    longest = min(options.longest or 131_072, setting.shape.kv_tokens)
    return mooncake.read(Path(options.trace), options.requests, options.nodes, options.load, longest)


def _setting(options: argparse.Namespace) -> Setting:
    return Setting(
        nodes=options.nodes,
        routers=options.routers,
        shape=Shape(kv_tokens=options.kv_tokens, max_num_seqs=options.max_num_seqs, plain=options.plain_nodes),
        report_delay=options.report_delay_ms / 1e3,
        report_loss=options.report_loss,
        slow=options.slow,
        dying=options.dying,
        slo=Slo(options.slo_ttft, options.slo_itl),
        max_wall=options.max_seconds,
    )


def _names(given: str, known: Sequence[str], what: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--suite", action="store_true", help="run the cases that the dispatch policy is held to")
    add("--cases", default="", help=f"of these: {', '.join(CASES)}")
    add("--policies", default="", help=f"of these: {', '.join((LAYA, *POLICIES))}")
    add("--trace", default="azure", help=f"{', '.join(KINDS)}, or a JSONL file in Mooncake's format")
    add("--requests", type=_number(1, 1_000_000), default=3000, help="requests of a run, up to 1,000,000")
    add("--nodes", type=_number(1, 1000), default=16)
    add("--routers", type=_number(1, 64), default=1, help="routers, which do not talk to each other")
    add("--load", type=_real(0.0, 10.0), default=0.7, help="share of the nodes' time; 0 keeps the times of a file")
    add("--burstiness", type=_real(0.1, 20.0), default=1.0, help="coefficient of variation of times between arrivals")
    add("--longest", type=_number(0, 131_072), default=0, help="most tokens of a request; 0 takes what fits")
    add("--kv-tokens", type=_number(1024, 1 << 26), default=524_288, help="KV cache of a node")
    add("--max-num-seqs", type=_number(1, 4096), default=256, help="sequences a node runs at once")
    add("--report-delay-ms", type=_real(0.0, 60_000.0), default=1.0, help="age of a report when a router gets it")
    add("--report-loss", type=_real(0.0, 1.0), default=0.0, help="share of reports that are lost")
    add("--slow", type=_number(0, 1000), default=0, help="nodes that are slow for half the time")
    add("--dying", type=_number(0, 1000), default=0, help="nodes that die and come back")
    add("--plain-nodes", action="store_true", help="bare engines without ledger and admission, which preempt")
    add("--slo-ttft", type=_real(0.001, 3600.0), default=2.0, help="seconds to the first token that are good enough")
    add("--slo-itl", type=_real(0.001, 3600.0), default=0.1, help="mean seconds between tokens that are good enough")
    add("--seed", type=_number(0, 1 << 31), default=1, help="the first seed")
    add("--seeds", type=_number(1, 1000), default=1, help="runs of each policy; figures are medians")
    add("--max-seconds", type=_real(1.0, 86_400.0), default=1800.0, help="real time a run may take")
    add("--json", action="store_true", help="print JSON, a line for each table")
    add("--plot", default="", help="draw the figures into this PNG (needs matplotlib)")
    return parser


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least} to {most}, not {value}")
        return value

    return parse


def _real(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least:g} to {most:g}, not {text}")
        return value

    return parse


if __name__ == "__main__":
    sys.exit(main())
