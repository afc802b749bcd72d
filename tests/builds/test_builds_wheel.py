"""The compiled wheel: what is in it, and that it runs where it is installed."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

import rewindmq
from rewindmq.builds import SUFFIX
from rewindmq.compiler import MODULES
from tests.install.installed import SECONDS, Environment, InstalledBroker, build, copy_source
from tests.support.running import ROOT


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as `make wheel REWINDMQ_COMPILE=1` makes it, with what the checkout has compiled."""
    source = copy_source(tmp_path_factory.mktemp("source") / "checkout")
    subprocess.run(["cp", "-r", str(ROOT / "rewindmq" / "compiled"), str(source / "rewindmq")], check=True)
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"), REWINDMQ_COMPILE="1")


@pytest.fixture(scope="module")
def environment(compiled_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install` of it into a fresh environment."""
    return Environment(tmp_path_factory.mktemp("environment") / "venv", compiled_wheel)


def test_it_is_for_this_python_and_platform_and_has_one_import_name(compiled_wheel: Path) -> None:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert compiled_wheel.name == f"rewindmq-{rewindmq.__version__}-{version}-{version}-{platform}.whl"
    names = ZipFile(compiled_wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"rewindmq", "pyspark_rewindmq.py", f"rewindmq-{rewindmq.__version__}.dist-info"}
    extensions = {name.rpartition("/")[2].removesuffix(SUFFIX) for name in names if name.endswith(".so")}
    [library] = {name for name in extensions if name.endswith("__mypyc")}
    assert extensions == {*MODULES, library}
    assert all(name.startswith("rewindmq/compiled/") for name in names if name.endswith(".so"))
    assert {"rewindmq/compiled/manifest.json", "rewindmq/schemas/codec.py"} <= set(names)


def test_a_pure_wheel_of_a_compiled_checkout_has_nothing_compiled(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "checkout")
    subprocess.run(["cp", "-r", str(ROOT / "rewindmq" / "compiled"), str(source / "rewindmq")], check=True)
    for kind in ("sdist", "wheel"):
        (tmp_path / kind).mkdir()
        made = build(source, kind, tmp_path / kind)
        if kind == "wheel":
            assert made.name.endswith("-py3-none-any.whl")
            assert not [name for name in ZipFile(made).namelist() if "compiled" in name]
        else:
            listed = subprocess.run(["tar", "tzf", str(made)], capture_output=True, text=True, check=True).stdout
            assert "compiled" not in listed


def test_an_installed_broker_is_compiled_and_the_switch_makes_it_pure(environment: Environment, tmp_path: Path) -> None:
    where = "import rewindmq.schemas.codec as codec; print(codec.__file__)"
    file = environment.run("python", "-c", where, cwd=tmp_path).stdout.strip()
    assert Path(file).parent == environment.site / "rewindmq" / "compiled"
    broker = InstalledBroker(environment, tmp_path / "data")
    try:
        assert broker.ready_line.endswith(", compiled build\n")
        shown = environment.run("rewindmq", "status", "--url", broker.http_url, cwd=tmp_path).stdout
        assert f"Build: compiled ({len(MODULES)} modules" in shown
    finally:
        assert broker.stop() == 0, "".join(broker.errors)
    pure = subprocess.run(
        [environment.python, "-c", where],
        cwd=tmp_path,
        env={"REWINDMQ_PURE": "1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert pure.stdout.strip() == str(environment.site / "rewindmq" / "schemas" / "codec.py")


def test_a_traceback_of_an_installed_one_shows_its_source(environment: Environment, tmp_path: Path) -> None:
    program = (
        "import traceback\nfrom rewindmq.schemas.codec import Decoder\n"
        "try:\n    Decoder().decode(b'')\nexcept Exception:\n    traceback.print_exc()\n"
    )
    done = environment.run("python", "-c", program, cwd=tmp_path)
    assert 'File "rewindmq/schemas/codec.py", line ' in done.stderr
    assert "raise UndecodableRecord(" in done.stderr


def no_manifest(compiled: Path) -> None:
    (compiled / "manifest.json").unlink()


def no_library(compiled: Path) -> None:
    next(compiled.glob("*__mypyc*")).unlink()


@pytest.mark.parametrize("damage", [no_library, no_manifest])
def test_a_damaged_installation_runs_pure(compiled_wheel: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    environment = Environment(tmp_path / "venv", compiled_wheel)
    damage(environment.site / "rewindmq" / "compiled")
    program = "import rewindmq, rewindmq.schemas.codec as codec; print(rewindmq.builds.running(), codec.__file__)"
    done = environment.run("python", "-c", program, cwd=tmp_path)
    assert done.stdout.startswith("pure")
    assert done.stdout.endswith("rewindmq/schemas/codec.py\n")
