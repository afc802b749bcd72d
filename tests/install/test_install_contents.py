"""An sdist and a wheel have the right contents, and an installed RewindMQ leaves other projects' names alone."""

import re
import subprocess
import tarfile
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import rewindmq
from tests.install.installed import Environment, build, copy_source
from tests.support.running import ROOT

FOLDERS = ("schemas", "projections", "engine", "spark_replay")
SHIPPED_README = "schemas/README.md"  # those of the rooms are for readers of the source


def names(wheel: Path) -> set[str]:
    return {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_a_wheel_has_one_import_name_and_the_module_that_spark_looks_for(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert tops == {"rewindmq", "pyspark_rewindmq.py", f"rewindmq-{rewindmq.__version__}.dist-info"}


def test_all_files_of_the_folders_are_in_it(wheel: Path) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    files -= {file for file in files if file.endswith("/README.md")} - {SHIPPED_README}
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rewindmq").iterdir() if path.is_file()}
    assert names(wheel) == {f"rewindmq/{file}" for file in files} | own | {"pyspark_rewindmq.py"}
    for each in ("py.typed", SHIPPED_README, "schemas/avsc/Published.avsc", "engine/http/static/index.html"):
        assert f"rewindmq/{each}" in names(wheel)


def test_a_wheel_is_the_same_from_a_checkout_and_from_an_sdist(wheel: Path, tmp_path: Path) -> None:
    """In a checkout rewindmq/engine is a link; an sdist has the files."""
    (tmp_path / "built").mkdir()
    direct = build(copy_source(tmp_path / "checkout"), "wheel", tmp_path / "built")
    with ZipFile(direct) as mine, ZipFile(wheel) as theirs:
        assert names(direct) == names(wheel)
        assert [name for name in names(wheel) if mine.read(name) != theirs.read(name)] == []


def test_an_sdist_has_no_links_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    tops = {member.name.split("/")[1] for member in members if "/" in member.name}
    built = {"PKG-INFO", "setup.cfg", "rewindmq.egg-info"}
    assert tops - built == {"LICENSE", "README.md", "pyproject.toml", "pyspark_rewindmq.py", "rewindmq", "setup.py"}


def test_the_metadata_say_who_may_use_it_and_what_it_needs(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"rewindmq-{rewindmq.__version__}.dist-info/METADATA").decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Version"], metadata["License-Expression"]) == (rewindmq.__version__, "Apache-2.0")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# RewindMQ")
    assert {"archive", "kafka", "spark", "demo", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    core = {re.split(r"[^\w-]", each)[0] for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each}
    assert core == {re.split(r"[^\w-]", each)[0] for each in project["dependencies"]}
    assert not core & {
        "pyspark",
        "pyarrow",
        "pandas",
        "openlineage-python",
        "protobuf",
        "confluent-kafka",
        "obstore",
        "rich",
    }


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A project that has names of its own where RewindMQ's folders have theirs."""
    (tmp_path / "schemas.py").write_text("mine = 'schemas'\n")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("mine = 'engine'\n")
    return tmp_path


def test_a_project_with_the_same_names_is_not_disturbed(core: Environment, theirs: Path) -> None:
    assert core.own == {"rewindmq", "pyspark_rewindmq.py", "__pycache__", f"rewindmq-{rewindmq.__version__}.dist-info"}
    program = (
        "import importlib.util, rewindmq, rewindmq.engine, rewindmq.engine.process, rewindmq.schemas.producer\n"
        "import engine, schemas\n"
        "assert importlib.util.find_spec('projections') is None\n"
        "print(engine.mine, schemas.mine, rewindmq.engine.__file__)"
    )
    done = core.run("python", "-c", program, cwd=theirs)
    assert done.stdout == f"engine schemas {core.site / 'rewindmq' / 'engine' / '__init__.py'}\n", done.stderr
    for command, kind in (
        (("rewindmq", "--version"), ", build: pure"),
        (("python", "-m", "rewindmq", "version"), ""),
    ):
        done = core.run(*command, cwd=theirs)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{rewindmq.__version__}{kind}\n", "")


def test_where_nothing_compiles_the_wheel_is_pure_and_says_why(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "checkout")
    (tmp_path / "wheel").mkdir()
    wheel = build(source, "wheel", tmp_path / "wheel", REWINDMQ_COMPILE="", CC="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    done = Environment(tmp_path / "venv", wheel).run("rewindmq", "--version", cwd=tmp_path)
    why = "pure (not compiled: compiling needs a C compiler, and there is no no-such-compiler: install gcc"
    assert done.stdout.startswith(f"{rewindmq.__version__}, build: {why}")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(source, "wheel", tmp_path / "wheel", REWINDMQ_COMPILE="1", CC="no-such-compiler")
    assert b"not compiled: compiling needs a C compiler" in failed.value.stderr
