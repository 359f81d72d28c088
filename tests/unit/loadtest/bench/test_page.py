"""The page holds everything, and fetches nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from loadtest.bench import page, plots
from tests.unit.loadtest.bench.made import made, row


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    report = made()
    pictures = plots.all_of(report)
    path = page.write(report, tmp_path / "out", pictures)
    text = path.read_text()
    links = _Links()
    links.feed(text)
    assert links.open == []
    assert len(links.found) == len(pictures) == 6
    assert all(link.startswith("data:image/png;base64,") for link in links.found)
    assert not re.search(r"https?://|url\(|@import", re.sub(r'"data:[^"]*"', "", text))
    assert {p.name for p in path.parent.iterdir()} == {"index.html", *pictures}


def test_it_tells_where_the_figures_come_from() -> None:
    report = made()
    report.warnings.append("the bench itself was late")
    report.partial = "the budget of 5 s was used up"
    text = page.html(report, {})
    for part in ("laya bench made", "abc", "seed", "127.0.0.1:1", "the bench itself was late", "Only a part was run",
                 "queue_full", "TTFT p50, ms", "round 5", "Where a request's time goes",
                 "laya_node_ttft_seconds", "rate: 10"):  # fmt: skip
        assert part in text, part


def test_what_a_server_says_is_no_markup() -> None:
    report = made()
    report.rounds[0].rows.append(row(status=500, error="<script>alert(1)</script>"))
    report.model = "<b>m</b>"
    text = page.html(report, {})
    assert "<script>" not in text and "<b>m" not in text and "&lt;b&gt;m" in text


def test_the_terminal_gets_medians_with_their_spread() -> None:
    text = page.text(made())
    assert re.search(r"TTFT p50, ms +\d+(\.\d+)?   mean between \d", text)
    assert "not answered, queue_full" in text
    assert re.search(r"offered +42$", text, re.MULTILINE)


def test_a_report_without_one_answer_is_still_a_page() -> None:
    report = made(rounds=1)
    report.rounds[0].rows = [row(status=0, error="connection refused", first=0.0)]
    report.rounds[0].figures = {}
    report.samples = []
    assert "connection refused" in page.html(report, plots.all_of(report))
