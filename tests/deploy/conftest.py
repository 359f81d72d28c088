"""What the tests of the deployment share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tools


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
