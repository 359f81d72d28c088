"""Two reports side by side, with a plain verdict for each figure and one for all.

Intervals hold together: with k figures judged, each has a confidence of 1 - 5 %/k, so that two runs of the same thing
show any difference at all in at most one comparison of twenty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Literal

from loadtest.bench import page
from loadtest.bench.report import FIGURES, Report, Round
from loadtest.bench.stats import Difference, compare
from loadtest.figures import shown

JUDGED = ("ttft_p50", "ttft_p99", "itl_p50", "latency_p50", "goodput", "tokens", "failed")
"""Figures that make the verdict; the others are shown beside them."""
_ERROR = 0.05
Overall = Literal["better", "worse", "mixed", "no difference shown", "too few rounds"]


class NotComparable(ValueError):
    """Reports of different things: one sentence."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of both."""

    key: str
    heading: str
    difference: Difference
    judged: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it."""

    lines: tuple[Line, ...]
    paired: bool
    overall: Overall
    notes: tuple[str, ...]


def diff(a: Report, b: Report) -> Comparison:
    """Compare the whole rounds of two reports. Raises NotComparable."""
    if a.plan.works != b.plan.works or a.plan.rate != b.plan.rate or a.plan.seconds != b.plan.seconds:
        raise NotComparable(
            f"A ran {a.plan.name} and B {b.plan.name} with other requests, rate or length: run the same plan for both"
        )
    ours, theirs = a.whole_rounds(), b.whole_rounds()
    paired = bool(a.pair) and a.pair == b.pair
    if paired:
        common = {r.number for r in ours} & {r.number for r in theirs}
        ours, theirs = [r for r in ours if r.number in common], [r for r in theirs if r.number in common]
    known = [key for key in JUDGED if _known(ours, key) and _known(theirs, key)]
    confidence = 1.0 - _ERROR / max(1, len(known))
    lines = []
    for key, (heading, unit, less) in FIGURES.items():
        if less is None or not (_known(ours, key) and _known(theirs, key)):
            continue
        x, y = ([r.figures.get(key, math.nan) for r in rounds] for rounds in (ours, theirs))
        found = compare(x, y, less_is_better=less, paired=paired, confidence=confidence)
        lines.append(Line(key, f"{heading}, {unit}" if unit else heading, found, key in known))
    return Comparison(tuple(lines), paired, _overall(lines), tuple(_notes(a, b, paired)))


def _known(rounds: list[Round], key: str) -> bool:
    return any(not math.isnan(one.figures.get(key, math.nan)) for one in rounds)


def _overall(lines: list[Line]) -> Overall:
    found = {line.difference.verdict for line in lines if line.judged}
    if "better" in found and "worse" in found:
        return "mixed"
    for verdict in ("worse", "better", "no difference shown"):
        if verdict in found:
            return verdict
    return "too few rounds"


def _notes(a: Report, b: Report, paired: bool) -> list[str]:
    notes = []
    if not paired:
        notes.append(
            "the rounds of A and B did not take turns: what else the machine did may be the difference; "
            "`laya bench PLAN --target A --beside B` lets them"
        )
    for key in ("processor", "cores", "laya", "python"):
        if a.environment.get(key) != b.environment.get(key):
            notes.append(f"{key}: A had {a.environment.get(key)}, B {b.environment.get(key)}")
    for name, report in (("A", a), ("B", b)):
        if report.partial:
            notes.append(f"{name} is not whole: {report.partial}")
    return notes


def sentence(found: Comparison) -> str:
    """The verdict in plain words, of B over A."""
    judged = [line for line in found.lines if line.judged]
    named = {v: ", ".join(line.heading for line in judged if line.difference.verdict == v) for v in ("better", "worse")}
    if found.overall == "mixed":
        return f"B is better in {named['better']}, and worse in {named['worse']}."
    if found.overall in ("better", "worse"):
        return f"B is {found.overall}: {named[found.overall]}. No difference is shown in the other figures judged."
    if found.overall == "too few rounds":
        return "Nothing can be said: three whole rounds of each or more are needed."
    return "No difference is shown."


def text(a: Report, b: Report, found: Comparison) -> str:
    """The table for a terminal."""
    lines = [f"A: {_name(a)}", f"B: {_name(b)}", ""]
    lines.append(f"  {'':<44}{'A':>10}{'B':>10}   {'B - A, with its interval':<34}verdict")
    for line in found.lines:
        d = line.difference
        mark = "" if line.judged else "   (not judged)"
        lines.append(f"  {line.heading:<44}{shown(d.a):>10}{shown(d.b):>10}   {_change(d):<34}{d.verdict}{mark}")
    return "\n".join([*lines, "", sentence(found), *(f"note: {note}" for note in found.notes)])


def _change(d: Difference) -> str:
    c = d.change
    bounds = "" if math.isnan(c.low) else f" ({shown(c.low)} to {shown(c.high)})"
    return f"{'+' if c.middle > 0 else ''}{shown(c.middle)}{bounds}"


def _name(report: Report) -> str:
    commit = report.environment.get("commit", "unknown")
    return f"{report.plan.name} on {report.target}, {report.started}, commit {commit}, seed {report.seed}"


def as_dict(found: Comparison) -> dict[str, object]:
    """For scripts."""
    figures = {
        line.key: {
            "a": _plain(line.difference.a),
            "b": _plain(line.difference.b),
            "change": _plain(line.difference.change.middle),
            "low": _plain(line.difference.change.low),
            "high": _plain(line.difference.change.high),
            "verdict": line.difference.verdict,
            "judged": line.judged,
        }
        for line in found.lines
    }
    return {"overall": found.overall, "paired": found.paired, "notes": list(found.notes), "figures": figures}


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def html(a: Report, b: Report, found: Comparison, pictures: Mapping[str, bytes]) -> str:
    """The page."""
    rows = []
    for line in found.lines:
        d = line.difference
        kind = d.verdict if d.verdict in ("better", "worse") else ""
        cells = (line.heading, shown(d.a), shown(d.b), _change(d))
        mark = d.verdict if line.judged else f"{d.verdict} (not judged)"
        inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells) + f'<td class="{kind}">{escape(mark)}</td>'
        rows.append(f"<tr>{inner}</tr>")
    head = "<tr><th></th><th>A</th><th>B</th><th>B - A, with its interval</th><th>verdict</th></tr>"
    images = "".join(page.image(data, name) for name, data in pictures.items())
    notes = "".join(page.warning(note) for note in found.notes)
    about = f"<p>A: {escape(_name(a))}<br>B: {escape(_name(b))}</p>"
    return page.document(
        "laya bench diff",
        f"<h1>{escape(sentence(found))}</h1>{about}{notes}<table>{head}{''.join(rows)}</table>{images}",
    )
