"""Whether the router's hot path has become dearer than it was at a base revision: ``make perf [BASE=revision]``.

    python -m loadtest.perf [--base REV] [--by auto|instructions|cpu] [--only grpc,http] [--self-test] [--json]

The working tree, as it is, is compared with BASE (HEAD where the product has changes that are not committed, else what
was there before the last commit that changed it). The cases are those of ``loadtest/perf_cases.py``: calls and messages
through the router's own code in memory, no sockets. With valgrind they are counted in CPU instructions, which no
neighbour on the machine can change (the same code twice differs by 0.2 %, over HTTP by up to 1 %): a case fails beyond
2 %. Without it both revisions take turns and CPU time decides: a case fails where the median of the rounds' ratios and
the ratio of the fastest rounds are both beyond 15 %.
Both sides run in the same form: compiled where the working tree's extensions are there and BASE can be compiled too
(once: ``loadtest/perf_base.py`` keeps what was made), else plain Python; ``--plain`` is the short way.

``--self-test`` compares the working tree with itself, once as it is and once with a loop added to each request, and
fails unless the first passes and the second is caught. Exit code: 0 within the band, 1 beyond it (or the working tree
cannot run a case any more), 2 when not everything could be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.perf_base import (
    COMPILE_LIMIT,
    ROOT,
    PerfError,
    compile_base,
    default_base,
    extract,
    is_compiled,
    keep,
    key,
)

BANDS: Final = {"instructions": 0.02, "cpu": 0.15}
# Units of one measurement: enough to drown what varies, few enough for callgrind.
UNITS: Final = {"grpc": 160, "scan": 160, "stream": 1024, "http": 160, "dispatch": 1000}
TIMES: Final = 10  # so many more where time is measured, since it costs a hundredth
REPEATS: Final = 2  # measurements by instructions; the least counts
# Turns of the loop of the self-test, once for each request: a few times the band.
BURN: Final = {"instructions": 100, "cpu": 2000}
BURNT: Final = ("grpc", "scan", "http")  # cases whose unit is a request
ANSWER_LIMIT: Final = 900.0  # seconds; on a quiet machine an answer takes ten


@dataclass(frozen=True)
class Verdict:
    """One case. ``ratio`` is new to base; ``worse`` says that it is beyond the band."""

    case: str
    base: float
    new: float
    ratio: float
    worse: bool
    note: str = ""
    open: bool = False  # nothing was found out


class CaseError(PerfError):
    """A revision cannot run a case."""

    def __init__(self, said: str, new: bool = False) -> None:
        super().__init__(said)
        self.new = new


def judge(case: str, by: str, pairs: list[tuple[float, float]]) -> Verdict:
    """A verdict on (base, new) measurements that belong together."""
    band = BANDS[by]
    if by == "instructions":
        base, new = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
        ratio = new / base
        return Verdict(case, base, new, ratio, ratio > 1 + band)
    ratios = [new / base for base, new in pairs]
    ratio = statistics.median(ratios)
    base, new = (min(side) for side in zip(*pairs, strict=True))  # noise only ever adds
    return Verdict(case, base, new, ratio, min(ratio, new / base) > 1 + band, f"{len(ratios)} rounds")


class Side:
    """One revision, in a process of its own that measures cases on demand."""

    def __init__(self, tree: Path, by: str, folder: Path, name: str, plain: bool, burn: int = 0) -> None:
        out = folder / f"callgrind-{name}"
        self._new = tree is ROOT
        argv = [sys.executable, str(ROOT / "loadtest" / "perf_cases.py"), str(tree), "--by", by, "--out", str(out)]
        if by == "instructions":
            counted = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
            argv = [*counted, f"--log-file={folder / name}.log", *argv]
        if burn:
            argv += ["--burn", str(burn)]
        env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        env["LAYA_PLAIN"] = "1" if plain else ""
        self._errors = (folder / f"{name}.err").open("w+")
        self._proc = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=folder, env=env
        )

    def measure(self, case: str, units: int) -> float:
        """What a unit costs. Raises CaseError where this revision cannot run the case, PerfError where it is gone."""
        asked, told = self._pipes()
        with contextlib.suppress(BrokenPipeError):
            asked.write(json.dumps({"case": case, "units": units}) + "\n")
            asked.flush()
        line = told.readline()
        if not line:
            self._errors.seek(0)
            raise PerfError(f"the process that measures ended: {self._errors.read()[-600:].strip()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CaseError(answer["error"], self._new)
        return float(answer["value"])

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        asked, told = self._proc.stdin, self._proc.stdout
        if asked is None or told is None:
            raise PerfError("the process that measures has no pipes")
        return asked, told

    def kill(self) -> None:
        """End it at once; what waits for its answer is told so."""
        self._proc.kill()

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._pipes()[0].close()
        try:
            self._proc.wait(20)
        except subprocess.TimeoutExpired:
            self._proc.kill()
            self._proc.wait(10)
        self._errors.close()


def compare(base: Side, new: Side, by: str, cases: list[str], rounds: int) -> list[Verdict]:
    """Verdicts on all cases, or those up to the one in which a side was lost, which is open.

    A case that the base cannot run has a note; one that only the new side cannot run is worse.
    """
    out: list[Verdict] = []
    nan = float("nan")
    with ThreadPoolExecutor(2) as pool:
        for case in cases:
            try:
                out.append(judge(case, by, _pairs(base, new, by, case, rounds, pool)))
            except CaseError as error:
                said = "the working tree cannot run it" if error.new else "not compared, the base cannot run it"
                out.append(Verdict(case, 0.0, 0.0, nan, error.new, f"{said}: {error}"))
            except PerfError as error:
                out.append(Verdict(case, 0.0, 0.0, nan, False, f"not compared: {error}", open=True))
                break
    return out


def _pairs(
    base: Side, new: Side, by: str, case: str, rounds: int, pool: ThreadPoolExecutor
) -> list[tuple[float, float]]:
    units = UNITS[case]
    pairs = []
    if by == "instructions":  # at the same time: neither can change what the other counts
        for _ in range(REPEATS):
            both = [pool.submit(side.measure, case, units) for side in (base, new)]
            try:
                pairs.append((both[0].result(ANSWER_LIMIT), both[1].result(ANSWER_LIMIT)))
            except TimeoutError:
                for side in (base, new):
                    side.kill()
                raise PerfError(f"no answer within {ANSWER_LIMIT:.0f} s; on a machine this busy try --by cpu") from None
        return pairs
    for i in range(rounds):  # in turns, each first as often as the other
        if i % 2:
            after = new.measure(case, units * TIMES)
            pairs.append((base.measure(case, units * TIMES), after))
        else:
            before = base.measure(case, units * TIMES)
            pairs.append((before, new.measure(case, units * TIMES)))
    return pairs


def counter(asked: str) -> str:
    """How to measure. Raises PerfError where valgrind is asked for and not there."""
    there = all(shutil.which(name) for name in ("valgrind", "vgdb"))
    if asked == "instructions" and not there:
        raise PerfError("valgrind is not installed: install it, or use --by cpu")
    return asked if asked != "auto" else "instructions" if there else "cpu"


def show(verdicts: list[Verdict], by: str, base: str, form: str) -> None:
    """The table and what it comes to."""
    unit = "instructions" if by == "instructions" else "ns of CPU"
    print(f"working tree against {base}, {form}, {unit} a unit; noise band {BANDS[by]:.0%}")
    print(f"{'case':<10}{'base':>12}{'new':>12}{'change':>9}")
    for one in verdicts:
        if one.base:
            said = f"{'WORSE ' if one.worse else ''}{one.note}"
            print(f"{one.case:<10}{one.base:>12,.0f}{one.new:>12,.0f}{one.ratio - 1:>+9.2%}  {said}".rstrip())
        else:
            print(f"{one.case:<10}{'WORSE ' if one.worse else ''}{one.note}")


def run(args: argparse.Namespace) -> int:
    """The comparison; the exit code. Raises PerfError."""
    by = counter(args.by)
    began = time.monotonic()
    cases = args.only.split(",") if args.only else list(UNITS)
    if not set(cases) <= set(UNITS):
        raise PerfError(f"--only takes {', '.join(UNITS)}")
    with tempfile.TemporaryDirectory(prefix="laya-perf-") as name:
        folder = Path(name)
        base = args.base or default_base()
        tree = ROOT if args.self_test else extract(base, folder)
        plain = args.plain or not is_compiled(ROOT)
        if not plain and not args.self_test:
            keep(ROOT, key(ROOT))
            plain = not compile_base(tree, args.compile_limit)
        form = "plain Python" if plain else "compiled"
        tries = [("itself", 0), ("itself with a loop in each request", BURN[by])] if args.self_test else [(base, 0)]
        failed = False
        for i, (what, burn) in enumerate(tries):
            sides = [Side(tree, by, folder, f"base{i}", plain), Side(ROOT, by, folder, f"new{i}", plain, burn)]
            try:
                verdicts = compare(sides[0], sides[1], by, cases, args.rounds)
            finally:
                for side in sides:
                    side.close()
            if args.json:
                print(json.dumps({"base": what, "by": by, "form": form, "cases": [asdict(one) for one in verdicts]}))
            else:
                show(verdicts, by, what, form)
            if any(one.open for one in verdicts):
                raise PerfError("not all cases were compared: a side did not answer or ended")
            if not any(one.base or one.worse for one in verdicts):
                raise PerfError("no case could be compared")
            worse = [one.case for one in verdicts if one.worse]
            if args.self_test:
                missed = [one.case for one in verdicts if burn and not one.worse and one.case in BURNT]
                failed = failed or bool(missed) or (not burn and bool(worse))
                continue
            failed = bool(worse)
    print(f"perf: {'beyond' if failed else 'within'} the band after {time.monotonic() - began:.0f} s", file=sys.stderr)
    return int(failed)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="", help="revision to compare with")
    parser.add_argument("--by", choices=("auto", "instructions", "cpu"), default="auto")
    parser.add_argument("--only", default="", metavar="CASES", help=f"of {', '.join(UNITS)}")
    parser.add_argument("--rounds", type=int, default=12, help="where time is compared")
    parser.add_argument("--plain", action="store_true", help="plain Python on both sides")
    parser.add_argument("--compile-limit", type=float, default=COMPILE_LIMIT, metavar="S", help="0: kept ones only")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        sys.exit(run(args))
    except PerfError as error:
        print(f"perf: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
