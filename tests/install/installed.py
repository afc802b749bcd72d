"""RewindMQ built and installed as a user gets it: sdist, wheel, and environments that hold what a wheel asks for.

An environment is a venv with the wheel in it, and links to the packages that the wheel's metadata names, with theirs,
as this interpreter has them. So it needs no network, and a package that the metadata forgot is missing there.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.running import ROOT, RunningBroker

# What the images are built from (compose/Dockerfile), and all that a build needs.
SOURCE = (
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "pyspark_rewindmq.py",
    "rewindmq",
    "schemas",
    "projections",
    "engine",
    "spark_replay",
)
SECONDS = 300


def copy_source(to: Path) -> Path:
    """A checkout with nothing in it that an earlier build has left."""
    to.mkdir()
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, to / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "compiled")
            )
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def build(source: Path, kind: str, to: Path, **environment: str) -> Path:
    """`kind`: sdist or wheel, a pure one unless REWINDMQ_COMPILE says otherwise. Without a network: setuptools is this
    interpreter's."""
    program = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    command = [sys.executable, "-c", program, str(to)]
    env = {**os.environ, "REWINDMQ_COMPILE": "0", **environment}
    subprocess.run(command, cwd=source, env=env, check=True, capture_output=True, timeout=SECONDS)
    [made] = to.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


def unpacked(sdist: Path, to: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, that of Debian 12, has none
        archive.extractall(to)
    [source] = to.iterdir()
    return source


class Environment:
    """A venv at `path` with the wheel in it, and the packages of its `extras` linked."""

    def __init__(self, path: Path, wheel: Path, extras: tuple[str, ...] = ()) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True, timeout=SECONDS)
        self.bin = path / "bin"
        self.python = self.bin / "python"
        [self.site] = (path / "lib").glob("python3.*/site-packages")
        options = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
        pip = (sys.executable, "-m", "pip", "--python", str(self.python), "install", *options, str(wheel))
        subprocess.run(pip, check=True, timeout=SECONDS)
        self.own = {entry.name for entry in self.site.iterdir()}
        [mine] = self.site.glob("rewindmq-*.dist-info")
        for each in needed(Distribution.at(mine), {"", *extras}, {}).values():
            self._link(each)

    def _link(self, package: Distribution) -> None:
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            link = self.site / top
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(top))))

    def run(self, *command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """A program of its `bin`, as where it is activated, and without this checkout on any path."""
        env = {**clean(), "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


def clean() -> dict[str, str]:
    """The environment, without what would lead Python or Spark elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "REWINDMQ"))}


def needed(package: Distribution, extras: set[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return the distributions that the package requires with these extras ("": none), all levels deep, by name."""
    for text in package.requires or ():
        requirement = Requirement(text)
        wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in extras)
        key = f"{requirement.name.lower()}[{','.join(sorted(requirement.extras))}]"
        if wanted and key not in found:
            found[key] = distribution(requirement.name)
            assert requirement.specifier.contains(found[key].version, prereleases=True), text
            needed(found[key], {"", *requirement.extras}, found)
    return found


class InstalledBroker(RunningBroker):
    """The broker of an environment."""

    program = ("start",)

    def __init__(self, environment: Environment, data: Path, *options: str) -> None:
        self.environment = environment
        super().__init__(data, *options)

    def command(self, command: list[str]) -> list[str]:
        return [str(self.environment.bin / "rewindmq"), *command[1:]]
