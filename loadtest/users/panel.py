"""The figures that matter for a model, out of locust's statistics: for its web page, a CSV file and the terminal.

All of them come from the rows that ``record`` writes, which locust's master has of all workers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from loadtest.users.record import GOOD, ITL, LATE, OPEN, RATE, REJECTED, TTFT, UNFINISHED

_SHARES = (0.5, 0.95, 0.99)
COLUMNS = (
    "type", "name", "calls", "rejected", "good %", "good/s", "tokens/s", "ttft p50", "ttft p95", "ttft p99", "itl p50",
    "itl p95", "itl p99",
)  # fmt: skip
REJECT_COLUMNS = ("type", "name", "reason", "count", "p50", "p95", "p99")
_PARTS = (TTFT, ITL, RATE, GOOD)


def rows(stats: Any) -> list[dict[str, Any]]:
    """A row for each kind of call. Times are milliseconds; tokens/s are of all streams together."""
    out = []
    for (name, kind), entry in sorted(stats.entries.items()):
        if kind == OPEN or name.endswith(_PARTS) or REJECTED in name:
            continue
        good = stats.entries.get((name + GOOD, kind))
        met = good.num_requests if good else 0
        seconds = _seconds(stats)
        row: dict[str, Any] = {
            "type": kind,
            "name": name,
            "calls": entry.num_requests,
            "rejected": entry.num_failures,
            "good %": round(100 * met / entry.num_requests, 1) if entry.num_requests else 0.0,
            "good/s": round(met / seconds, 2),
            "tokens/s": round(entry.total_content_length / seconds, 1),
        }
        for label, part in (("ttft", TTFT), ("itl", ITL)):
            found = stats.entries.get((name + part, kind))
            for share in _SHARES:
                value = found.get_response_time_percentile(share) if found and found.num_requests else 0
                row[f"{label} p{share * 100:g}"] = round(float(value), 1)
        out.append(row)
    return out


def _seconds(stats: Any) -> float:
    total = stats.total
    return float(max(1e-3, (total.last_request_timestamp or 0) - total.start_time))


def rejects(stats: Any) -> list[dict[str, Any]]:
    """Refusals by reason, and how long it took to refuse (ms)."""
    out = []
    for (name, kind), entry in sorted(stats.entries.items()):
        call, mark, reason = name.partition(REJECTED)
        if mark:
            times = [round(float(entry.get_response_time_percentile(share)), 1) for share in _SHARES]
            out.append(
                {"type": kind, "name": call, "reason": reason, "count": entry.num_requests}
                | dict(zip(("p50", "p95", "p99"), times, strict=True))
            )
    return out


def open_loop(stats: Any) -> str:
    """How well the load itself kept its times; empty in a closed loop."""
    late = stats.entries.get((LATE, OPEN))
    if late is None or not late.num_requests:
        return ""
    dropped = stats.entries.get(("arrival", OPEN))
    said = f"arrivals: {late.num_requests} due, made late by {late.get_response_time_percentile(0.99):g} ms at p99"
    return said + (f", {dropped.num_failures} dropped at the cap (--max-in-flight)" if dropped else "")


def text(stats: Any) -> str:
    """For the terminal."""
    found = rows(stats)
    widths = [max([len(c), *(len(str(row[c])) for row in found)]) for c in COLUMNS]
    lines = ["Laya (ms; good: within the SLO; tokens/s of all streams)"]
    lines.append("  ".join(c.ljust(w) for c, w in zip(COLUMNS, widths, strict=True)))
    for row in found:
        lines.append("  ".join(str(row[c]).ljust(w) for c, w in zip(COLUMNS, widths, strict=True)))
    for one in rejects(stats):
        lines.append(
            f"rejected: {one['type']} {one['name']} {one['reason']}: {one['count']}, after {one['p50']:g} ms at p50, "
            f"{one['p99']:g} at p99"
        )
    if said := open_loop(stats):
        lines.append(said)
    unfinished = stats.entries.get((UNFINISHED, OPEN))
    if unfinished:
        lines.append(f"cut off by the end: {unfinished.num_requests} calls (--stop-timeout lets them end)")
    return "\n".join(lines)


def to_csv(stats: Any) -> str:
    """The rows as CSV."""
    return _csv(COLUMNS, rows(stats))


def rejects_csv(stats: Any) -> str:
    """The refusals as CSV."""
    return _csv(REJECT_COLUMNS, rejects(stats))


def _csv(columns: Iterable[str], found: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns))
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue()


def extend(web_ui: Any, stats: Any) -> None:
    """Two tabs of locust's web page, and their downloads."""
    from flask import Blueprint, Response, json, request

    tabs = (
        ("laya", "Laya", COLUMNS, rows),
        ("laya-rejects", "Rejects", REJECT_COLUMNS, rejects),
    )
    web_ui.template_args |= {
        "extended_tabs": [{"title": title, "key": key} for key, title, _, _ in tabs],
        "extended_tables": [
            {"key": key, "structure": [{"key": _key(c), "title": c} for c in columns]} for key, _, columns, _ in tabs
        ],
        "extended_csv_files": [
            {"href": "/laya/csv", "title": "Download Laya CSV"},
            {"href": "/laya/rejects/csv", "title": "Download rejects CSV"},
        ],
    }
    blueprint = Blueprint("laya", __name__)

    def page(name: str, make: Any) -> Any:
        def answer() -> Response:
            said = {"content-disposition": f"attachment;filename={name}.csv", "content-type": "text/csv"}
            return Response(make(stats), headers=said)

        return web_ui.auth_required_if_enabled(answer)

    blueprint.add_url_rule("/laya/csv", "laya_csv", page("laya", to_csv))
    blueprint.add_url_rule("/laya/rejects/csv", "rejects_csv", page("laya_rejects", rejects_csv))
    web_ui.app.register_blueprint(blueprint)

    def with_ours(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            data = response.get_json()
            data["extended_stats"] = [
                {"key": key, "data": [{_key(c): v for c, v in row.items()} for row in make(stats)]}
                for key, _, _, make in tabs
            ]
            response.set_data(json.dumps(data))
        return response

    web_ui.app.after_request(with_ours)


def _key(column: str) -> str:
    """A name that the page's camel case leaves alone."""
    return column.replace(" ", "").replace("%", "share").replace("/s", "rate")
