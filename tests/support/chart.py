"""The Helm chart: rendering it, and finding things in what comes out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.processes import ROOT
from tests.support.tools import run

CHART = ROOT / "helm" / "laya"
EXAMPLES = sorted((ROOT / "helm" / "examples").glob("*.yaml"))
SIM = {"auth": {"existingSecret": "laya"}, "models": [{"name": "sim", "source": {"sim": True}}]}
Manifest = dict[str, Any]


def template(helm: Path, folder: Path, *values: dict[str, Any] | Path) -> subprocess.CompletedProcess[str]:
    """``helm template`` with these values, later ones over earlier ones."""
    flags: list[str | Path] = []
    for i, one in enumerate(values):
        if isinstance(one, dict):
            file = folder / f"values-{i}.yaml"
            file.write_text(yaml.safe_dump(one))
            one = file
        flags += ["-f", one]
    return run(helm, "template", "rel", CHART, "--namespace", "prod", *flags)


def render(helm: Path, folder: Path, *values: dict[str, Any] | Path) -> list[Manifest]:
    """The manifests."""
    result = template(helm, folder, *values)
    assert result.returncode == 0, result.stderr
    return [m for m in yaml.safe_load_all(result.stdout) if m]


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    """Those of some kinds."""
    return [m for m in manifests if m["kind"] in kinds]


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The one of a kind and a name."""
    found = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} of {kind}/{name}"
    return found[0]


def workloads(manifests: list[Manifest]) -> list[Manifest]:
    """Those with pods that stay."""
    return of_kind(manifests, "Deployment", "StatefulSet", "DaemonSet")


def pod_specs(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod's spec with a name for it."""
    for m in manifests:
        name = f"{m['kind']}/{m['metadata']['name']}"
        if m["kind"] == "Pod":
            yield name, m["spec"]
        elif m["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            yield name, m["spec"]["template"]["spec"]


def containers(spec: Manifest) -> list[Manifest]:
    """All containers of a pod, those that run first included."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def config_of(manifests: list[Manifest], name: str) -> Manifest:
    """The configuration file in a ConfigMap."""
    config: Manifest = yaml.safe_load(one(manifests, "ConfigMap", name)["data"]["laya.yaml"])
    return config
