"""The page of a report: one HTML file with everything in it, nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import msgspec

from loadtest.bench import plots
from loadtest.bench.report import FIGURES, Report, per_node, reasons
from loadtest.bench.stats import mean_interval, median
from loadtest.figures import shown

FILE = "index.html"
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:76em;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #ddd}
table{border-collapse:collapse;margin:.6em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #eee}
td:first-child,th:first-child{text-align:left}img{max-width:100%}code{background:#f4f4f4;padding:.1em .3em}
.warn{background:#fff4d6;padding:.4em .8em;border-left:4px solid #e6a700;margin:.4em 0}
.better{color:#00704a}.worse{color:#b03000}
"""
_ABOUT = {
    "latency.png": "All rounds together, and thin each of them. Times count from when a request was due.",
    "over-time.png": "",
    "headroom.png": "As the router saw its nodes.",
    "nodes.png": "By the header of each answer.",
    "rejects.png": "By the reason that came with the refusal or the failure.",
    "processes.png": "The bench itself is among them where it runs on the same machine.",
}


def write(report: Report, folder: Path, pictures: Mapping[str, bytes]) -> Path:
    """The page, and the pictures as files beside it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in pictures.items():
        (folder / name).write_bytes(data)
    path = folder / FILE
    path.write_text(html(report, pictures), encoding="utf-8")
    return path


def html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """The page of one report."""
    plan = report.plan
    parts = [f"<h1>laya bench: {escape(plan.name)}</h1><p>{escape(plan.about)}</p>"]
    parts += [warning(w) for w in ([f"Only a part was run: {report.partial}."] if report.partial else [])]
    parts += [warning(w) for w in report.warnings]
    parts.append(_table(["", ""], _facts(report)))
    parts.append("<h2>Figures</h2><p>Medians over the rounds, means with their 95 % interval, and each round.</p>")
    parts.append(_figures(report))
    for name, data in pictures.items():
        parts.append(f"<h2>{escape(name.removesuffix('.png').replace('-', ' '))}</h2>{image(data, name)}")
        if _ABOUT.get(name):
            parts.append(f"<p>{escape(_ABOUT[name])}</p>")
    parts.append("<h2>Not answered, by reason</h2>" + _counts(dict(reasons(report.rounds))))
    parts.append("<h2>Answered, by node</h2>" + _counts(per_node(report.rounds)))
    parts.append(_split(report))
    parts.append(_stages(report))
    parts.append("<h2>Environment</h2>" + _table(["", ""], list(report.environment.items())))
    text = msgspec.yaml.encode(plan).decode()
    parts.append(f"<h2>Plan</h2><pre>{escape(text)}</pre>")
    return document(f"laya bench: {plan.name}", "\n".join(parts))


def document(title: str, body: str) -> str:
    """A whole page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    rounds = report.rounds
    whole = len(report.whole_rounds())
    return [
        ("target", report.target),
        ("model", report.model),
        ("started", report.started),
        ("commit", report.environment.get("commit", "unknown")),
        ("seed", str(report.seed)),
        ("rounds", f"{whole} whole of {report.plan.rounds}" + (", one in part" if len(rounds) > whole else "")),
        ("command", report.command),
    ]


def text(report: Report) -> str:
    """The figures for a terminal."""
    lines = [f"{report.plan.name} on {report.target}, model {report.model}, seed {report.seed}"]
    for name, middle, low, high, _ in rows(report):
        spread = "" if math.isnan(low) else f"   mean between {shown(low)} and {shown(high)}"
        lines.append(f"  {name:<44}{shown(middle):>10}{spread}")
    for reason, count in reasons(report.rounds).most_common(8):
        lines.append(f"  not answered, {reason:<30}{count:>10}")
    return "\n".join([*lines, *(f"  note: {warning}" for warning in report.warnings)])


def rows(report: Report) -> list[tuple[str, float, float, float, list[float]]]:
    """Heading with unit, median, the interval of the mean, and each round; figures that nobody knows are left out."""
    found = []
    rounds = report.whole_rounds() or report.rounds
    for key, (heading, unit, less) in FIGURES.items():
        values = [one.figures.get(key, math.nan) for one in rounds]
        known = [v for v in values if not math.isnan(v)]
        if known:
            # Counts of requests follow from the plan's chance; an interval would say nothing.
            bounds = mean_interval(known if less is not None else known[:1])
            # A share or a time is never below 0, whatever the interval's formula says.
            low = bounds.low if math.isnan(bounds.low) else max(0.0, bounds.low)
            found.append((f"{heading}, {unit}" if unit else heading, median(known), low, bounds.high, values))
    return found


def _figures(report: Report) -> str:
    made = []
    for name, middle, low, high, values in rows(report):
        between = "" if math.isnan(low) else f"{shown(low)} to {shown(high)}"
        made.append((name, shown(middle), between, *(_cell(v) for v in values)))
    count = len(report.whole_rounds() or report.rounds)
    return _table(["", "median", "mean, 95 %", *(f"round {i + 1}" for i in range(count))], made)


def _split(report: Report) -> str:
    known = [one.split for one in report.rounds if one.split]
    if not known:
        return ""
    table = [(name, shown(1e3 * median([split[name] for split in known]))) for name in known[0]]
    about = "Means of answered requests, by the histograms of router and nodes; rest is the network, relay and client."
    return f"<h2>Where a request's time goes</h2><p>{about}</p>" + _table(["", "ms"], table)


def _stages(report: Report) -> str:
    names = sorted({name for one in report.rounds for name in one.stages})
    if not names:
        return ""
    table = [
        (name, shown(1e3 * median([one.stages[name] for one in report.rounds if name in one.stages]))) for name in names
    ]
    return "<h2>Means of the servers' own histograms</h2>" + _table(["", "ms"], table)


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return _table(["", "requests"], [(name, str(count)) for name, count in ordered]) if counts else "<p>None.</p>"


def _cell(value: float) -> str:
    return "-" if math.isnan(value) else shown(value)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in heads) if any(heads) else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in line) + "</tr>" for line in lines)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def warning(text: str) -> str:
    """A paragraph that stands out."""
    return f'<p class="warn">{escape(text)}</p>'


def image(data: bytes, name: str) -> str:
    """A PNG inside the page."""
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'


def pictures_of(report: Report) -> dict[str, bytes]:
    """The pictures where they can be drawn, else none."""
    return plots.all_of(report) if plots.available() else {}
