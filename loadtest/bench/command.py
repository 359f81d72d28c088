"""What ``laya bench`` does with its options; every way to fail is one line and an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from loadtest.bench import diff, folder, page, plans, plots
from loadtest.bench.cluster import own
from loadtest.bench.plan import BadPlan, Plan, check
from loadtest.bench.report import BadReport, Report, load, save
from loadtest.bench.run import Runner, Side, exit_code, quick
from loadtest.bench.target import NotYours, TargetDown, half_up, parse
from loadtest.bench.watch import Watched, pids
from loadtest.bench.work import look
from loadtest.rig import RigError
from loadtest.sim.mooncake import BadTrace
from shared.cli import state

USAGE, MISSING, DOWN, REFUSED = 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class Options:
    """As the command line gives them."""

    plan: str = "smoke"
    target: str | None = None
    beside: str | None = None
    admin: str | None = None
    out: str | None = None
    seed: int = 1
    budget: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    rate: float | None = None
    engine: str | None = None
    model: str = ""
    key: str | None = None
    tls: bool = False
    ca: str | None = None
    owned: bool = False
    no_plots: bool = False
    force: bool = False
    as_json: bool = False


def bench(options: Options) -> int:
    """Run a plan and write its report; the exit code."""
    if not options.no_plots and not plots.available():
        return _fail(MISSING, plots.INSTALL)
    try:
        plan = _plan(options)
        if options.out:
            folder.check(Path(options.out), options.force)
        look(plan)
        reports = _measured(plan, options)
    except (BadPlan, BadTrace, NotYours) as error:
        return _fail(USAGE, str(error))
    except TargetDown as error:
        return _fail(REFUSED if error.refused else DOWN, str(error))
    except RigError as error:
        return _fail(DOWN, f"the cluster did not start: {error}")
    except OSError as error:
        return _fail(1, f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
    except ValueError as error:
        return _fail(USAGE, str(error))
    return _written(reports, options)


def _plan(options: Options) -> Plan:
    plan = quick(plans.find(options.plan), options.rounds, options.seconds, options.rate)
    if options.engine:
        nodes = msgspec.structs.replace(plan.nodes, engine=options.engine, slow=0, kill=0.0)
        plan = msgspec.structs.replace(plan, nodes=nodes)
    return check(plan)


def _measured(plan: Plan, options: Options) -> list[Report]:
    if options.beside and not options.target:
        raise BadPlan("--beside needs --target")
    budget = options.budget or plan.longest * (2 if options.beside else 1) + 60.0
    command = shlex.join(["laya", *sys.argv[1:]])
    runner = Runner(plan, options.seed, budget, _without_key(command, options.key), options.model, _say)
    with _sides(plan, options) as sides:
        return uvloop.run(_run(runner, sides, options))


async def _run(runner: Runner, sides: list[Side], options: Options) -> list[Report]:
    token = os.environ.get("LAYA_SERVER__CLUSTER_TOKEN", "")
    for side in sides:
        if side.own is None and side.watched.admin:
            side.watched.node_pages, warnings = await half_up(side.watched.admin, token)
            side.warnings = tuple(warnings)
            side.watched.token = token
            for warning in side.warnings:
                _say(warning)
    return await runner.run(sides)


@contextlib.contextmanager
def _sides(plan: Plan, options: Options) -> Iterator[list[Side]]:
    if options.target is None:
        _say(f"starting {plan.nodes.count} {plan.nodes.engine} nodes and a router")
        with own(plan) as cluster:
            yield [Side(cluster.address, cluster.watched, own=cluster)]
        return
    tls = _tls(options)
    named = [parse(t, options.owned) for t in (options.target, options.beside) if t]
    yield [
        Side(address, Watched(_admin(address, options) if not i else "", pids(())), options.key, tls)
        for i, address in enumerate(named)
    ]


def _admin(address: str, options: Options) -> str:
    """The private listener: the one given, or that of the running `laya up` where it is the target."""
    if options.admin:
        return parse(state.admin_address(options.admin), options.owned)
    return str(state.find(address).get("admin") or "")


def _tls(options: Options) -> ssl.SSLContext | None:
    if not (options.tls or options.ca):
        return None
    try:
        return ssl.create_default_context(cafile=options.ca)
    except OSError as error:
        raise BadPlan(f"--ca: {options.ca} cannot be read ({error.strerror or error})") from None


def _written(reports: list[Report], options: Options) -> int:
    base = Path(options.out or f"bench/{reports[0].plan.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    folders = [base] if len(reports) == 1 else [base / "a", base / "b"]
    try:
        folder.clear(base)
        for report, where in zip(reports, folders, strict=True):
            save(report, where)
            made = page.write(report, where, {} if options.no_plots else plots.all_of(report))
            if not options.as_json:
                print(page.text(report))
                print(f"  report: {made}\n")
        if len(reports) == 2:
            _beside(reports, base, options)
    except OSError as error:
        return _fail(1, f"{error.filename}: the report cannot be written ({error.strerror})")
    if options.as_json:
        print(json.dumps([_summary(r, f) for r, f in zip(reports, folders, strict=True)]))
    for why in dict.fromkeys(report.partial for report in reports if report.partial):
        _say(f"only a part was run: {why}")
    return exit_code(reports)


def _beside(reports: list[Report], base: Path, options: Options) -> None:
    a, b = reports
    found = diff.diff(a, b)
    pictures = {} if options.no_plots else {"latency.png": plots.beside(a, b)}
    (base / page.FILE).write_text(diff.html(a, b, found, pictures), encoding="utf-8")
    if not options.as_json:
        print(diff.text(a, b, found))


def _summary(report: Report, folder: Path) -> dict[str, object]:
    figures = {name: None if value != value else value for name, value, *_ in page.rows(report)}
    return {"folder": str(folder), "plan": report.plan.name, "partial": report.partial, "median": figures}


def compare(a: str, b: str, out: str | None, as_json: bool) -> int:
    """Compare two reports; 1 when B is worse in anything that is judged."""
    try:
        first, second = load(Path(a)), load(Path(b))
        found = diff.diff(first, second)
        if out:
            pictures = {"latency.png": plots.beside(first, second)} if plots.available() else {}
            Path(out).write_text(diff.html(first, second, found, pictures), encoding="utf-8")
    except (BadReport, diff.NotComparable) as error:
        return _fail(USAGE, str(error))
    except OSError as error:
        return _fail(USAGE, f"{error.filename}: {error.strerror}")
    print(json.dumps(diff.as_dict(found)) if as_json else diff.text(first, second, found))
    return 1 if found.overall in ("worse", "mixed") else 0


def _without_key(command: str, key: str | None) -> str:
    return command.replace(key, "KEY") if key else command


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _fail(code: int, why: str) -> int:
    _say(f"laya: {why}")
    return code
