"""The page of settings is the schema's, whole and in step."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shared.config import Config
from shared.config.reference import page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == page(), "run: laya config reference > docs/configuration.md"


def test_every_key_of_every_section_is_there_with_its_default() -> None:
    text = page()
    for section in msgspec.structs.fields(Config):
        assert f"## `{section.encode_name}`" in text
        for field in msgspec.structs.fields(section.type):
            assert f"| `{field.encode_name}` |" in text
    assert "| `port` | `8000` |" in text
    assert "longest wait for a node with room before 429" in text
