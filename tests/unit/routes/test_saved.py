"""The snapshot file: whole or not at all, and read back as it was."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from router_node.routes import saved
from router_node.routes.book import Book
from router_node.routes.rules import RouteError
from router_node.routes.saved import Saver, read, write
from tests.support.ports import until
from tests.support.routes import rule


def test_a_table_comes_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "routes.json"
    book = Book.begun({"a": rule("a"), "b": rule("b", when={"content": "x"})})
    assert read(path) is None
    write(path, book)
    found = read(path)
    assert found is not None and found.same_as(book) and found.rules == book.rules
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["routes.json"]


@pytest.mark.parametrize("text", ["", "{", '{"format":9,"lineage":"l","number":1,"digest":"","rules":[]}', "[]"])
def test_a_file_that_is_none_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "routes.json"
    path.write_text(text)
    with pytest.raises(RouteError, match=r"routes\.json"):
        read(path)


async def test_the_saver_keeps_the_last_of_a_burst_and_what_comes_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "EVERY", 0.05)
    path = tmp_path / "routes.json"
    saver = Saver(path)
    saver.start()
    book = Book.begun({"a": rule("a")})
    saver.heard(book, None)
    await until(path.exists, "written")
    last = Book(book.lineage, 9, "d", {})
    saver.heard(last, None)
    await saver.close()
    found = read(path)
    assert found is not None and found.same_as(last)


async def test_a_disk_that_refuses_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "EVERY", 0.02)
    (tmp_path / "file").write_text("x")
    saver = Saver(tmp_path / "file" / "routes.json")
    saver.start()
    saver.heard(Book.begun({}), None)
    await until(lambda: "cannot be saved" in saver.trouble, "said")
    (tmp_path / "file").unlink()
    saver.heard(Book.begun({}), None)
    await until(lambda: not saver.trouble, "written after all")
    await saver.close()
