"""One sdist, one wheel of it, and the environments that tests share."""

from pathlib import Path

import pytest

from tests.install.installed import Environment, build, copy_source, unpacked

pytestmark = pytest.mark.of_pure


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(copy_source(tmp_path_factory.mktemp("source") / "checkout"), "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as pip does where there is no wheel."""
    return build(unpacked(sdist, tmp_path_factory.mktemp("unpacked")), "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install rewindmq`"""
    return Environment(tmp_path_factory.mktemp("core") / "venv", wheel)


@pytest.fixture(scope="session")
def with_spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'rewindmq[spark]'`"""
    return Environment(tmp_path_factory.mktemp("spark") / "venv", wheel, ("spark",))
