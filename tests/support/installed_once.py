"""Programs that a checkout gets once, for its tests: each in a folder `target` of its own, which git ignores."""

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.needs import needed


@contextmanager
def installing(target: Path, version: str) -> Iterator[bool]:
    """Hold the folder, and say whether this version is missing there. Of several test runs at once one installs it.

    It counts as installed when the block ends without an error."""
    target.mkdir(exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed = target / version
        yield not installed.exists()
        installed.touch()


def install_from_npm(target: Path, package: str, version: str) -> None:
    """Install a package of npm into the folder, unless it is there."""
    options = ("--prefix", str(target), "--no-audit", "--no-fund", "--no-save", "--ignore-scripts")
    with installing(target, version) as missing:
        if missing:
            subprocess.run([needed("npm"), "install", *options, f"{package}@{version}"], check=True)
