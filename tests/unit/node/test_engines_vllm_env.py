"""Environment, cores and memory that vLLM gets."""

from __future__ import annotations

import gc
import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines import vllm_env
from shared.config.schema import ConfigError, InferenceConfig
from shared.logging import JsonFormatter, TextFormatter


def topology(root: Path, *groups: str) -> Path:
    """A machine whose physical cores are these groups of logical ones, each written as the kernel writes it."""
    for group in groups:
        for core in vllm_env.parse_cores(group):
            folder = root / f"cpu{core}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(group + "\n")
    return root


def test_garbage_collector_rests_during_imports_and_is_as_before_afterwards() -> None:
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), vllm_env.quick_imports():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_nothing_is_sent_home_and_nothing_follows_a_redirect() -> None:
    values = vllm_env.node_environment(InferenceConfig(), cpu=False, eager=True)
    assert values["VLLM_NO_USAGE_STATS"] == values["DO_NOT_TRACK"] == values["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert values["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert values["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert not {"TORCH_COMPILE_DISABLE", "OMP_NUM_THREADS"} & set(values)


def test_eager_on_the_cpu_compiles_nothing_at_all() -> None:
    assert vllm_env.node_environment(InferenceConfig(), cpu=True, eager=True)["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in vllm_env.node_environment(InferenceConfig(), cpu=True, eager=False)


@pytest.mark.parametrize(
    ("setting", "variable", "offline"), [(True, "", True), (False, "1", True), (False, "0", False)]
)
def test_offline_is_respected(monkeypatch: pytest.MonkeyPatch, setting: bool, variable: str, offline: bool) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", variable)
    values = vllm_env.node_environment(InferenceConfig(offline=setting), cpu=True, eager=False)
    assert (values.get("HF_HUB_OFFLINE") == "1") is offline


def test_users_own_thread_count_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert vllm_env.node_environment(InferenceConfig(), cpu=True, eager=False)["OMP_NUM_THREADS"] == "7"


def test_variables_that_open_doors_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in vllm_env.FORBIDDEN:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LAYA_TEST_VALUE", "old")
    vllm_env.apply({"LAYA_TEST_VALUE": "new"})
    assert os.environ["LAYA_TEST_VALUE"] == "new"
    assert not set(vllm_env.FORBIDDEN) & set(os.environ)


def test_one_openmp_thread_for_each_core_in_its_place() -> None:
    values = vllm_env.core_environment((0, 2), 0)
    assert (values["OMP_NUM_THREADS"], values["OMP_PROC_BIND"], values["OMP_PLACES"]) == ("2", "true", "{0},{2}")
    assert vllm_env.core_environment((0, 2), 2) == {"VLLM_CPU_OMP_THREADS_BIND": "0|2"}
    assert vllm_env.core_environment((), 0) == {}


@given(st.sets(st.integers(0, 4095), min_size=1, max_size=20))
def test_any_list_of_cores_can_be_read_back(cores: set[int]) -> None:
    assert vllm_env.parse_cores(",".join(map(str, cores))) == tuple(sorted(cores))


def test_ranges_of_cores() -> None:
    assert vllm_env.parse_cores("0-3, 6") == (0, 1, 2, 3, 6)


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "-1", "1,,2", "0-99999"])
def test_text_that_is_no_list_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"inference\.cpu_threads"):
        vllm_env.parse_cores(text)


def test_cores_that_were_asked_for_are_taken(tmp_path: Path) -> None:
    assert vllm_env.compute_cores("1-2", {0, 1, 2}, tmp_path) == (1, 2)


def test_core_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"may not use core 7; it may use 0-2,4"):
        vllm_env.compute_cores("0,7", {0, 1, 2, 4}, tmp_path)


def test_automatic_cores_are_physical_and_leave_one_free(tmp_path: Path) -> None:
    machine = topology(tmp_path, "0,4", "1,5", "2,6", "3,7")
    assert vllm_env.compute_cores("", range(8), machine) == (0, 1, 2)
    assert vllm_env.compute_cores("", {4, 5, 6}, machine) == (4, 5)


def test_only_core_is_used_all_the_same(tmp_path: Path) -> None:
    assert vllm_env.compute_cores("", {3}, tmp_path) == (3,)
    assert vllm_env.compute_cores("", {0, 1}, tmp_path) == (0,)


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [((0, 1, 2, 3), 2, "0,1|2,3"), ((0, 1, 2), 2, "0|1"), ((0,), 2, "auto"), ((), 1, "auto")],
)
def test_cores_are_shared_out_among_ranks(cores: tuple[int, ...], ranks: int, expected: str) -> None:
    assert vllm_env.split_cores(cores, ranks) == expected


@pytest.fixture
def vllm_log() -> Iterator[logging.Logger]:
    log = logging.getLogger("vllm")
    before = (log.handlers[:], log.propagate, log.level)
    yield log
    log.handlers[:], log.propagate, log.level = before


def test_vllm_logs_as_the_node_does(vllm_log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    style = pickle.loads(pickle.dumps(vllm_env.LogStyle(logging.WARNING)))
    style.apply()
    logging.getLogger("vllm.config").warning("Enforce eager set, disabling %s", "much")
    logging.getLogger("vllm.config").info("for nobody")
    logging.getLogger("vllm.config").warning("something else")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("vllm.config something else")


def test_vllms_own_processes_are_as_loud_as_ours() -> None:
    assert vllm_env.LogStyle(logging.WARNING).environment()["VLLM_LOGGING_LEVEL"] == "WARNING"


@pytest.mark.parametrize(("formatter", "json"), [(JsonFormatter(), True), (TextFormatter(), False), (None, False)])
def test_form_of_the_log_is_the_nodes(
    monkeypatch: pytest.MonkeyPatch, formatter: logging.Formatter | None, json: bool
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    assert vllm_env.LogStyle.of_this_process().json is json
