"""Hub ids: the cache by its layout, and a hub that a double stands in for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference_node.memory import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(root: Path, name: str = "org/model", revision: str = "main", config: str = "{}") -> Path:
    folder = root / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / revision).write_text(COMMIT)
    (snapshot / "config.json").write_text(config)
    return snapshot


def test_cache_is_read_by_branch_and_by_commit(tmp_path: Path) -> None:
    snapshot = put(tmp_path)
    assert hub.cached("org/model", root=tmp_path) == snapshot
    assert hub.cached("org/model", "main", tmp_path) == snapshot
    assert hub.cached("org/model", COMMIT, tmp_path) == snapshot
    assert hub.cached("org/model", "v2", tmp_path) is None
    assert hub.cached("org/other", root=tmp_path) is None


@pytest.mark.parametrize("name", ["../../etc", "org/../x", "/abs", "a/b/c", "", "org/mo del", "org/..", "-x/y"])
def test_name_that_is_no_id_leads_nowhere(tmp_path: Path, name: str) -> None:
    assert hub.cached(name, root=tmp_path) is None


@pytest.mark.parametrize("revision", ["../../../x", "/etc/passwd", "refs/../.."])
def test_revision_cannot_leave_the_cache(tmp_path: Path, revision: str) -> None:
    put(tmp_path)
    assert hub.cached("org/model", revision, tmp_path) is None


def test_ref_that_holds_no_commit_is_none(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "models--org--model" / "refs" / "main").write_text("../../..")
    assert hub.cached("org/model", root=tmp_path) is None


def test_cache_without_a_configuration_is_none(tmp_path: Path) -> None:
    (put(tmp_path) / "config.json").unlink()
    assert hub.cached("org/model", root=tmp_path) is None


def test_cache_is_where_the_library_has_it() -> None:
    assert hub.cache_root({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == Path("/a")
    assert hub.cache_root({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}) == Path("/b/hub")
    assert hub.cache_root({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert hub.cache_root({}) == Path("~/.cache/huggingface/hub").expanduser()


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {"TRANSFORMERS_OFFLINE": "true"}])
def test_surroundings_may_forbid_the_hub(offline: dict[str, str]) -> None:
    assert hub.is_offline(offline)
    assert not hub.is_offline({})


def test_offline_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(hub.HubError, match="asking the hub is switched off"):
        hub.fetch("org/model", offline=True)


class Library:
    """``huggingface_hub``, as far as it is used."""

    def __init__(self, folder: Path, files: dict[str, int], error: Exception | None = None) -> None:
        self.folder = folder
        self.files = files
        self.error = error
        self.asked: list[tuple[str, str | None]] = []

    def hf_hub_download(self, name: str, file: str, revision: str | None = None) -> str:
        if self.error is not None:
            raise self.error
        self.asked.append((file, revision))
        return str(self.folder / file)

    def HfApi(self) -> Any:
        siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in self.files.items()]
        return SimpleNamespace(model_info=lambda *_args, **_kwargs: SimpleNamespace(siblings=siblings))


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)

    def with_library(files: dict[str, int], error: Exception | None = None, revision: str = "") -> Any:
        library = Library(tmp_path, files, error)
        monkeypatch.setitem(sys.modules, "huggingface_hub", library)
        return hub.fetch("org/model", revision), library.asked

    return with_library


def test_configuration_and_index_alone_are_fetched(fetch: Any, tmp_path: Path) -> None:
    index = "model.safetensors.index.json"
    found, asked = fetch({"config.json": 1, index: 2, "model-1.safetensors": 1 << 40}, revision="v2")
    assert found == hub.Fetched(tmp_path, 0)
    assert asked == [("config.json", "v2"), (index, "v2")]


def test_without_an_index_the_sizes_are_listed(fetch: Any, tmp_path: Path) -> None:
    files = {"model.safetensors": 100, "sub/model.safetensors": 7, "pytorch_model.bin": 99}
    assert fetch(files)[0] == hub.Fetched(tmp_path, 100)
    assert fetch({"pytorch_model.bin": 99})[0].weights_bytes == 99


def test_hubs_refusal_is_one_sentence(fetch: Any) -> None:
    with pytest.raises(hub.HubError) as caught:
        fetch({}, OSError("404 Client Error. (Request ID: abc)\n\nRepository Not Found for url: x." + "y" * 5000))
    assert str(caught.value) == "org/model cannot be had from the hub: 404 Client Error"


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(hub.HubError, match="huggingface_hub is not installed"):
        hub.fetch("org/model")


def test_what_is_no_id_is_not_asked_for() -> None:
    with pytest.raises(hub.HubError, match="no folder, no file and no hub id"):
        hub.fetch("../../etc/passwd")
