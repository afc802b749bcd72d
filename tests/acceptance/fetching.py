"""Suites are fetched where their authors publish them, into the user's cache and never into this repository."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import venv
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewindmq" / "acceptance"


def python(suite: str, *packages: str) -> Path:
    """The interpreter of an environment with these packages; it is made anew when they are others."""
    home = CACHE / suite / "venv"
    made_of = home / "packages"
    asked = "\n".join(packages)
    if not made_of.exists() or made_of.read_text() != asked:
        venv.create(home, with_pip=True, clear=True)
        command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "pytest", "pytest-timeout", *packages], check=True)
        made_of.write_text(asked)
    return home / "bin" / "python"


def source(suite: str, interpreter: Path) -> Path:
    """The unpacked source distribution of that version which `interpreter` has."""
    told = subprocess.run([str(interpreter), "-m", "pip", "show", suite], capture_output=True, text=True, check=True)
    version = next(line.split()[1] for line in told.stdout.splitlines() if line.startswith("Version:"))
    home = CACHE / suite / version
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as fetched:
            command = [str(interpreter), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", suite]
            subprocess.run([*command, f"{suite}=={version}", "--dest", fetched], check=True)
            shutil.unpack_archive(next(Path(fetched).glob("*.tar.gz")), fetched)
            next(path for path in Path(fetched).iterdir() if path.is_dir()).rename(home)
    return home


def go_module(name: str) -> Path:
    """The version of a Go module that was the newest when it was fetched, to be written in."""
    versions = CACHE / name.rpartition("/")[2]
    home = next(iter(versions.glob("v*")), None)
    if home is None:
        versions.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as asking:
            (Path(asking) / "go.mod").write_text("module asking\n\ngo 1.20\n")
            told = subprocess.run(
                ["go", "mod", "download", "-json", f"{name}@latest"],
                cwd=asking,
                capture_output=True,
                text=True,
                check=True,
            )
            module = json.loads(told.stdout)
            home = versions / module["Version"]
            shutil.copytree(module["Dir"], home)
            subprocess.run(["chmod", "-R", "u+w", str(home)], check=True)  # the module cache is read-only
    return home


def go_program(name: str) -> Path:
    """Return the path of a program that `go install` makes of a package of a Go module; `name` ends with @version."""
    home = CACHE / "go" / name.rpartition("@")[0].replace("/", "-")
    program = home / name.rpartition("@")[0].rpartition("/")[2]
    if not program.exists():
        subprocess.run(["go", "install", name], env={**os.environ, "GOBIN": str(home)}, check=True)
    return program


def crate(name: str, version: str) -> Path:
    """Return a copy of a crate's source, to be built in."""
    home = CACHE / name / version
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as asking:
            (Path(asking) / "src").mkdir()
            (Path(asking) / "src" / "lib.rs").touch()
            wanted = f'[package]\nname = "asking"\nedition = "2021"\n\n[dependencies]\n{name} = "={version}"\n'
            (Path(asking) / "Cargo.toml").write_text(wanted)
            told = subprocess.run(
                ["cargo", "metadata", "--format-version", "1"], cwd=asking, capture_output=True, text=True, check=True
            )
            packages = json.loads(told.stdout)["packages"]
            manifest = next(package["manifest_path"] for package in packages if package["name"] == name)
            shutil.copytree(Path(manifest).parent, home)
    return home


def repository(name: str, tag: str) -> Path:
    """A work tree of GitHub's `name` (owner/name) at `tag`, for suites that are published nowhere else."""
    home = CACHE / name.rpartition("/")[2] / tag
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        command = ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--depth", "1", "--branch", tag]
        subprocess.run([*command, f"https://github.com/{name}.git", str(home)], check=True)
    return home


def copied(home: Path, ports: dict[int, int], *patterns: str) -> Path:
    """A copy of a suite in which the ports that it has fixed are others, in the files of these patterns."""
    copy = Path(tempfile.mkdtemp(prefix="rewindmq-acceptance-")) / home.name
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns(".git", "target"))
    for pattern in patterns:
        for path in copy.glob(pattern):
            text = path.read_text()
            for fixed, ours in ports.items():
                text = re.sub(rf"(?<!\d){fixed}(?!\d)", str(ours), text)
            path.write_text(text)
    return copy
