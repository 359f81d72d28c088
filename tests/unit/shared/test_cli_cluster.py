"""What ``laya up`` says of a child that cannot run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.cli import cluster


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (["Traceback", "  File x", "ValueError: broken"], "ValueError: broken"),
        (["12:00 INFO started", "laya-node: the port is taken"], "the port is taken"),
        (["12:00 INFO", "laya-node: it is too large", "", "  total 30", "Do:"], "it is too large\n  total 30\nDo:"),
        ([], "see /logs/node-1"),
        (["", "  "], "see /logs/node-1"),
    ],
)  # fmt: skip
def test_reason_is_the_childs_last_word_or_its_whole_screen(tail: list[str], reason: str) -> None:
    child: Any = SimpleNamespace(tail=tail, log_path="/logs/node-1")
    assert cluster._reason(child) == reason
