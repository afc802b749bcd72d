"""RabbitMQ 4.3: Debian unstable's package, in a directory of its own that is entered with chroot.

    python -m tests.support.debian_unstable        installs it and prints the directory (`make rabbitmq43`)

DIRECTORY is in the user's cache; RABBITMQ43=DIR names another one. debootstrap makes it, as root, with the package
manager's default settings, from the mirror that apt uses here (400 MB).
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
    """A RabbitMQ is not here, and why."""


def is_installed() -> bool:
    """The directory has RabbitMQ."""
    return (DIRECTORY / RABBITMQ).exists()


def install() -> Path:
    """The directory, made when it is not there. Raises NotInstalled."""
    if is_installed():
        return DIRECTORY
    if found("debootstrap") is None:
        raise NotInstalled("RabbitMQ 4.3 comes from Debian unstable: apt-get install debootstrap")
    if os.geteuid() != 0:
        raise NotInstalled("RabbitMQ 4.3 runs in a directory with Debian unstable, which only root can make and enter")
    DIRECTORY.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY.name}-", dir=DIRECTORY.parent))
    print(f"installing Debian unstable's RabbitMQ into {DIRECTORY} (400 MB)", flush=True)
    how = ["--variant=minbase", "--include=rabbitmq-server,procps", "unstable", str(making), _mirror()]
    made = subprocess.run([needed("debootstrap"), *how], capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(making, ignore_errors=True)
        raise NotInstalled(f"Debian unstable could not be installed: {made.stdout[-500:]}{made.stderr[-500:]}")
    (making / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    making.rename(DIRECTORY)
    return DIRECTORY


def _mirror() -> str:
    """The mirror from which apt installs Debian itself here. Raises NotInstalled."""
    fields = "$(REPO_URI) $(ORIGIN) $(LABEL)"
    asked = subprocess.run(["apt-get", "indextargets", "--format", fields], capture_output=True, text=True)
    for line in asked.stdout.splitlines():
        address, _, said = line.partition(" ")
        if said == "Debian Debian":
            return address
    raise NotInstalled("apt names no mirror of Debian (apt-get update first): RabbitMQ 4.3 can't be installed")


if __name__ == "__main__":
    print(install())
