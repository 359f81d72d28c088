"""Files of the deployment that need no engine: Dockerfiles, Compose, systemd units, the package's metadata."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support import tools
from tests.support.processes import ROOT

DOCKERFILES = ("router_node/Dockerfile", "inference_node/Dockerfile", "loadtest/Dockerfile")
UNITS = {"laya-router.service": 30, "laya-node@.service": 30}  # the drain of the configuration's default


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name: str) -> None:
    linter = tools.hadolint()
    if linter is None:
        pytest.skip(f"hadolint is not installed; {tools.INSTALL}")
    result = tools.run(linter, ROOT / name)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_are_pinned_and_start_behind_an_init(name: str) -> None:
    text = (ROOT / name).read_text()
    for image in re.findall(r"^ARG \w+_IMAGE=(\S+)", text, re.MULTILINE):
        assert re.search(r":v?\d+\.\d+\.\d+", image), image
    for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", text, re.MULTILINE):
        assert isinstance(json.loads(line), list)
    assert text.count("ENTRYPOINT") == text.count("HEALTHCHECK") == text.count("USER 10001:10001")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    last = [s for s in stages if "ENTRYPOINT" in s]
    assert last and not any(re.search(r"\b(gcc|g\+\+|build-essential)\b", s) for s in last)


def test_the_two_images_share_their_first_stage() -> None:
    def stage(name: str) -> str:
        text = (ROOT / name).read_text()
        return re.search(r"^FROM \S+ AS build\n.*?(?=^(?:FROM|# Beside))", text, re.MULTILINE | re.DOTALL)[0].strip()  # type: ignore[index]

    assert stage(DOCKERFILES[0]) == stage(DOCKERFILES[1])


def test_the_version_is_said_once() -> None:
    from shared.version import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    for name in DOCKERFILES:
        assert set(re.findall(r"^ARG VERSION=(\S+)", (ROOT / name).read_text(), re.MULTILINE)) == {__version__}


# Brought by the extras: imported where an engine, the quantizer, a GPU or a collector of traces is.
EXTRAS = {"huggingface_hub", "matplotlib", "opentelemetry", "pynvml", "safetensors", "torch", "transformers"}
ENGINES = ("inference_node/engines/", "inference_node/quantize/")


def test_what_the_code_imports_is_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {re.split(r"[<>=\[ ]", d)[0].lower().replace("-", "_") for d in project["dependencies"]}
    known = {"google": {"protobuf", "googleapis_common_protos"}, "yaml": {"pyyaml"}, "re2": {"google_re2"}}
    known |= {"grpc": {"grpcio"}, "grpc_health": {"grpcio_health_checking"}, "grpc_reflection": {"grpcio_reflection"}}
    known |= {"consul": {"py_consul"}, "dns": {"dnspython"}}
    ours = {"router_node", "inference_node", "shared", "loadtest", "laya"}
    for folder in ("router_node", "inference_node", "shared"):
        for file in (ROOT / folder).rglob("*.py"):
            if str(file.relative_to(ROOT)).startswith(ENGINES):
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names.append(node.module)
                for top in {name.split(".")[0] for name in names} - ours - set(sys.stdlib_module_names) - EXTRAS:
                    assert known.get(top, {top.lower()}) <= asked, f"{file.relative_to(ROOT)} imports {top}"


def test_extras_ask_for_what_the_lists_pin() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, file in (("vllm", "gpu.txt"), ("cpu", "cpu.txt"), ("llama-cpp", "llama-cpp.txt")):
        pinned = (ROOT / "requirements" / file).read_text().splitlines()
        for wanted in extras[extra]:
            if "==" in wanted:
                assert wanted in pinned


def test_the_load_tests_packages_are_those_that_tests_run_with() -> None:
    def pins(*names: str) -> set[str]:
        lines = "\n".join((ROOT / "requirements" / f"{name}.txt").read_text() for name in names)
        return {line for line in lines.splitlines() if "==" in line}

    assert pins("load") <= pins("dev", "cpu") - pins("base")


@pytest.mark.parametrize("more", [(), ("loadtest/compose.yaml",)], ids=["alone", "with a load"])
def test_compose_is_sound_and_open_to_this_machine_alone(more: tuple[str, ...]) -> None:
    binary = tools.compose()
    if binary is None:
        pytest.skip(f"Compose is not installed; {tools.INSTALL}")
    files = [part for file in ("compose.yaml", *more) for part in ("-f", str(ROOT / file))]
    done = tools.run(binary, *files, "config", "--format", "json")
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    expected = {"router", "node-1", "node-2", "store", "prometheus", "grafana"}
    assert (expected | {"load-master", "load-worker"} if more else expected) <= set(services)
    for name, service in services.items():
        assert not service["image"].endswith(":latest") and ":" in service["image"]
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", [])), name
        context = service.get("build", {}).get("context", str(ROOT))
        assert Path(context, service.get("build", {}).get("dockerfile", "")).exists()
        for volume in service.get("volumes", []):
            assert volume["type"] != "bind" or Path(volume["source"]).exists(), volume


def test_prometheus_asks_every_part_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    jobs = yaml.safe_load((ROOT / "swarm" / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {t.split(":")[0] for job in jobs for part in job["static_configs"] for t in part["targets"]}
    assert targets == {name for name in services if name.startswith(("router", "node"))}


@pytest.mark.parametrize("name", UNITS)
def test_systemd_knows_every_word_of_a_unit(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (ROOT / "systemd" / name).read_text()
    unit = tmp_path / name
    unit.write_text(re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", text, flags=re.MULTILINE))
    done = tools.run("systemd-analyze", "verify", "--man=no", unit)
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if "laya" in line]
    assert not about_it


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_bounds_memory_and_waits_for_the_drain(name: str) -> None:
    text = (ROOT / "systemd" / name).read_text()
    lines = dict(re.findall(r"^([A-Z]\w*)=(.*)$", text, re.MULTILINE))
    assert lines["MemorySwapMax"] == "0"
    assert lines["MemoryMax"] and lines["OOMScoreAdjust"]
    assert int(lines["TimeoutStopSec"]) > UNITS[name]
    assert lines["NoNewPrivileges"] == "yes" and lines["ProtectSystem"] == "strict"
    assert lines["RestartPreventExitStatus"].split() == ["2", "3"]


def test_a_reload_of_the_routers_unit_puts_another_process_in_its_place() -> None:
    lines = dict(re.findall(r"^([A-Z]\w*)=(.*)$", (ROOT / "systemd" / "laya-router.service").read_text(), re.MULTILINE))
    assert lines["Type"] == "notify"  # else systemd takes the end of the old process for that of the service
    assert lines["ExecReload"].endswith("-USR2 $MAINPID")
