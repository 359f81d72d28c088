"""What the tests of the deployment share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docker, images, tools
from tests.support.docker import Engine

IMAGES: list[tuple[str, str, list[str]]] = [
    ("router_node/Dockerfile", "laya/router:0.1.0", []),
    ("inference_node/Dockerfile", "laya/node:0.1.0-sim", ["--target", "sim"]),
]


def _helm(major: int, factory: pytest.TempPathFactory) -> Path:
    if tools.helm_archive(major) is None:
        pytest.skip(f"Helm {major} is not installed; {tools.INSTALL}")
    return tools.unpack_helm(major, factory.mktemp("helm"))


@pytest.fixture(scope="session")
def helm3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm 3."""
    return _helm(3, tmp_path_factory)


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm 4."""
    return _helm(4, tmp_path_factory)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A Docker engine with the image that ours start from."""
    reason = docker.why_not()
    if reason:
        pytest.skip(f"no Docker engine can be started: {reason}")
    # Whoever works on these tests keeps an engine, and with it the layers of its images.
    own = Engine(folder=os.environ.get("LAYA_TEST_ENGINE", ""))
    try:
        try:
            own.start()
            if own.try_(["image", "inspect", images.PYTHON_IMAGE]).returncode != 0:
                images.base(own)
        except (docker.DockerError, subprocess.SubprocessError, OSError) as error:
            # Not for want of a program: the sandbox may forbid mounts, or reach no mirror for a base image.
            pytest.skip(f"no Docker engine can be started: {str(error)[-600:]}")
        yield own
    finally:
        own.close()


@pytest.fixture(scope="session")
def built(engine: Engine) -> Engine:
    """The engine with the router's image and the simulated node's."""
    for dockerfile, tag, flags in IMAGES:
        if "LAYA_TEST_ENGINE" not in os.environ or engine.try_(["image", "inspect", tag]).returncode != 0:
            images.build(engine, dockerfile, tag, *flags)
    return engine
