"""Rules that come through standard input."""

from __future__ import annotations

import io

import click
import pytest

from shared.cli import routes_text


@pytest.mark.parametrize("text", ["[", "[" * 100_000, "a: [1", "- " * 20_000])
def test_what_is_no_yaml_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(click.UsageError, match="^standard input.*: not valid YAML: [^\\n]+$"):
        routes_text.rules_in("-")
