"""``laya plan``: what it prints, and what its exit code means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inference_node.memory import device
from inference_node.memory.device import Device
from shared.cli import main
from tests.unit.node.memory.files import folder, gguf, llama_pairs, safetensors

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def plan(*args: str) -> Result:
    return CliRunner().invoke(main.cli, ["plan", *args])


def data(*args: str) -> Any:
    return json.loads(plan(*args, "--json").stdout)


def test_it_is_listed_among_the_commands() -> None:
    assert "Show what a model takes of a memory." in CliRunner().invoke(main.cli, ["--help"]).output


def test_model_that_fits_is_code_zero() -> None:
    done = plan("Llama-2-7B", "--memory", "24GiB", "--max-seq-len", "4096", "--max-num-seqs", "2")
    assert done.exit_code == 0
    for words in ("llama-2-7b: 6.74 B", "2 of 2 GiB: 524,288 bytes a token", "Fits under 80 %", "GiB by context"):
        assert words in done.stdout
    assert "To make it fit" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_model_that_does_not_fit_is_code_one_and_told_what_to_change() -> None:
    done = plan("Llama-2-7B", "--memory", "24GiB", "--max-seq-len", "32768", "--max-num-seqs", "8")
    assert done.exit_code == 1
    assert "8 of 16 GiB" in done.stdout and "Does not fit: 118 GiB too much." in done.stdout
    assert "--max-seq-len 1024" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_changed_as_told_it_fits() -> None:
    found = data("Llama-2-7B", "--memory", "24GiB", "--max-seq-len", "32768", "--max-num-seqs", "8")
    assert not found["fits"]
    flags = {
        "max_seq_len": "--max-seq-len",
        "max_num_seqs": "--max-num-seqs",
        "quantization": "--quantization",
        "kv_dtype": "--kv-dtype",
        "tensor_parallel": "--tensor-parallel-size",
        "memory": "--memory",
    }
    assert len(found["changes"]) >= 4
    for change in found["changes"]:
        settings = {"memory": "24GiB", "max_seq_len": 32768, "max_num_seqs": 8}
        settings |= {k: v for k, v in change.items() if k in flags}
        args = [part for name, value in settings.items() for part in (flags[name], str(value))]
        assert plan("Llama-2-7B", *args).exit_code == 0


def test_tight_plan_fits_and_is_told_how_to_be_easy() -> None:
    done = plan("Llama-2-7B", "--memory", "24GiB", "--max-seq-len", "4096", "--max-num-seqs", "4")
    assert done.exit_code == 0
    assert "Fits, but over the mark" in done.stdout and "--max-num-seqs 2" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("Llama-2-7B", "--memory", "24 cows"),
        ("Llama-2-7B", "--memory", "24GiB", "--max-seq-len", "0"),
        ("Llama-2-7B", "--memory", "24GiB", "--max-num-seqs", "-1"),
        ("Llama-2-7B", "--memory", "24GiB", "--quantization", "magic"),
        ("Llama-2-7B", "--memory", "24GiB", "--kv-dtype", "int3"),
        ("no-such-model", "--memory", "24GiB"),
        ("/no/such/folder", "--memory", "24GiB"),
        ("--memory", "24GiB"),
    ],
)
def test_bad_usage_is_code_two_and_one_sentence(args: tuple[str, ...]) -> None:
    done = plan(*args)
    assert done.exit_code == 2
    assert done.stdout == "" and "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 4


def test_one_number_finds_the_other() -> None:
    longest = data("Llama-3.1-8B", "--memory", "24GiB", "--max-num-seqs", "2")
    assert (longest["max_num_seqs"], longest["verdict"]) == (2, "fits under 80 %")
    assert longest["max_seq_len"] == longest["longest_context"]["2"]
    most = data("Llama-3.1-8B", "--memory", "24GiB", "--max-seq-len", "2048")
    assert most["max_num_seqs"] == most["most_sequences"]["2048"]


def test_no_number_plans_as_a_node_would() -> None:
    found = data("Llama-3.1-8B", "--memory", "24GiB")
    assert found["fits"] and found["max_seq_len"] == 4096
    assert 0.79 < found["total"] / found["memory"] <= 0.8


def test_where_not_even_one_fits_one_is_shown() -> None:
    for args in ((), ("--max-seq-len", "2048"), ("--max-num-seqs", "3")):
        done = plan("Llama-3-70B", "--memory", "24GiB", *args)
        assert done.exit_code == 1 and "Does not fit" in done.stdout


def test_bits_are_what_they_are_said_to_be() -> None:
    size = ("--memory", "24GiB", "--max-seq-len", "4096", "--max-num-seqs", "1")
    plain = data("Llama-2-7B", *size)
    narrow = data("Llama-2-7B", *size, "--quantization", "awq", "--kv-dtype", "fp8")
    assert narrow["kv_bytes_per_token"] * 2 == plain["kv_bytes_per_token"] == 524_288
    assert narrow["weights"] < plain["weights"] / 3
    assert data("Llama-2-7B", *size, "--tensor-parallel-size", "2")["weights"] * 2 == plain["weights"]


def test_folder_and_gguf_file(tmp_path: Path) -> None:
    path = folder(tmp_path / "mine")
    size = safetensors(path / "model.safetensors", {"a": ("BF16", 1 << 20)})
    found = data(str(path), "--memory", "8GiB")
    assert (found["model"], found["weights"]) == ("mine", size)
    file = tmp_path / "mine.gguf"
    file.write_bytes(gguf(llama_pairs(vocab_size=1000)))
    assert data(str(file), "--memory", "8GiB", "--device", "cpu")["max_context"] == 8192


def test_broken_configuration_is_code_two_and_names_the_field(tmp_path: Path) -> None:
    done = plan(str(folder(tmp_path / "m", num_hidden_layers=None)), "--memory", "8GiB")
    assert done.exit_code == 2
    assert "num_hidden_layers is missing or zero" in done.stderr
    (tmp_path / "m" / "config.json").write_text("{")
    assert "is not valid JSON" in plan(str(tmp_path / "m"), "--memory", "8GiB").stderr


def test_memory_is_this_machines_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = Device("cpu", "m", 9 * GIB, 8 * GIB), Device("gpu", "g", 24 * GIB, 23 * GIB)
    monkeypatch.setattr(device, "host", lambda: cpu)
    monkeypatch.setattr(device, "gpus", lambda: gpu)
    assert data("SmolLM2-135M")["memory"] == 23 * GIB
    assert data("SmolLM2-135M", "--device", "cpu")["memory"] == 8 * GIB
    monkeypatch.setattr(device, "gpus", lambda: None)
    assert (found := data("SmolLM2-135M"))["device"] == "cpu" and found["memory"] == 8 * GIB
    done = plan("SmolLM2-135M", "--device", "gpu")
    assert done.exit_code == 2 and "--memory 24GiB" in done.stderr


def test_chart_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.png"
    assert plan("SmolLM2-135M", "--memory", "8GiB", "--chart", str(file)).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_chart_without_its_library_is_code_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = plan("SmolLM2-135M", "--memory", "8GiB", "--chart", str(tmp_path / "plan.png"))
    assert done.exit_code == 2 and "pip install matplotlib" in done.stderr


def test_worked_example_of_the_documentation_is_what_is_printed() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "memory.md").read_text()
    command, _, printed = page.partition("\n$ laya plan ")[2].partition("\n```")[0].partition("\n")
    done = plan(*command.split())
    assert done.stdout.rstrip() == printed
