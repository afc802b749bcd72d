"""A real small file system, for tests of a full disk: tmpfs in a mount namespace, filled up and emptied by a file.

    with SmallDisk(megabytes=96) as disk:
        disk.fill()                 not a byte is left
        disk.empty()                all of it is free again
        disk.path                   as processes of this test see it
        disk.command([...])         the same command, in the namespace in which `disk.path` is mounted

The namespace lives as long as the process that holds it, so brokers come and go on the same files.
"""

import os
import subprocess
from pathlib import Path

from tests.support.needs import needed, require

HOLD = 'mount -t tmpfs -o size="$1"m tmpfs "$0" && echo mounted && exec sleep infinity'


class SmallDisk:
    def __init__(self, mount_point: Path, megabytes: int) -> None:
        mount_point.mkdir(exist_ok=True)
        self.mount_point = mount_point
        self._holder = subprocess.Popen(
            [
                needed("unshare"),
                "--user",
                "--map-root-user",
                "--mount",
                "sh",
                "-c",
                HOLD,
                str(mount_point),
                str(megabytes),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        require(self._holder.stdout.readline() == "mounted\n", "no file system may be mounted here")
        self.path = Path(f"/proc/{self._holder.pid}/root{mount_point}")
        self._ballast = self.path / "ballast"

    def command(self, command: list[str]) -> list[str]:
        """Within the namespace, where the file system is at `mount_point`."""
        return [
            "nsenter",
            f"--target={self._holder.pid}",
            "--user",
            "--mount",
            "--preserve-credentials",
            f"--wdns={os.getcwd()}",
            *command,
        ]

    @property
    def free_bytes(self) -> int:
        space = os.statvfs(self.path)
        return space.f_bavail * space.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but so much (whole blocks)."""
        with self._ballast.open("ab") as file:
            file.write(b"\0" * max(0, self.free_bytes - leave_bytes))

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def __enter__(self) -> "SmallDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()
