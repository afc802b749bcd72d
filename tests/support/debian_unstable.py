"""Debian unstable in separate directories, entered with chroot: one for RabbitMQ 4.3, one for the newest Python.

    python -m tests.support.debian_unstable        installs RabbitMQ and prints the directory (`make rabbitmq43`)
    python -m tests.support.python_unstable        runs tests under its Python (`make python-unstable`)

The directories are in the user's cache; RABBITMQ43=DIR names another one for RabbitMQ. debootstrap makes them, as root,
with the package manager's default settings, from the mirror that apt uses here (400 MB).
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.needs import found, needed

RABBITMQ = Path("usr/lib/rabbitmq/bin/rabbitmq-server")  # below the root of a Debian
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewindmq"
DIRECTORY = Path(os.environ.get("RABBITMQ43") or CACHE / "rabbitmq-unstable").absolute()


class NotInstalled(Exception):
    """A Debian is not here, and why."""


def is_installed() -> bool:
    """The directory has RabbitMQ."""
    return (DIRECTORY / RABBITMQ).exists()


def install() -> Path:
    """The directory with RabbitMQ, made when it is not there. Raises NotInstalled."""
    return installed(DIRECTORY, RABBITMQ, "rabbitmq-server,procps")


def installed(directory: Path, program: Path, packages: str) -> Path:
    """The directory with a Debian that has `program`, made of `packages` when it is not there. Raises NotInstalled."""
    if (directory / program).exists():
        return directory
    if found("debootstrap") is None:
        raise NotInstalled(f"{program.name} comes from Debian unstable: apt-get install debootstrap")
    if os.geteuid() != 0:
        raise NotInstalled(f"{program.name} runs in a directory with Debian unstable, which only root makes and enters")
    directory.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=directory.parent))
    print(f"installing Debian unstable with {packages} into {directory} (400 MB)", flush=True)
    how = ["--variant=minbase", f"--include={packages}", "unstable", str(making), _mirror()]
    made = subprocess.run([needed("debootstrap"), *how], capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(making, ignore_errors=True)
        raise NotInstalled(f"Debian unstable could not be installed: {made.stdout[-500:]}{made.stderr[-500:]}")
    (making / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    making.rename(directory)
    return directory


def _mirror() -> str:
    """The mirror from which apt installs Debian itself here. Raises NotInstalled."""
    fields = "$(REPO_URI) $(ORIGIN) $(LABEL)"
    asked = subprocess.run(["apt-get", "indextargets", "--format", fields], capture_output=True, text=True)
    for line in asked.stdout.splitlines():
        address, _, said = line.partition(" ")
        if said == "Debian Debian":
            return address
    raise NotInstalled("apt names no mirror of Debian (apt-get update first): Debian unstable can't be installed")


if __name__ == "__main__":
    print(install())
