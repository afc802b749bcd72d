"""Reads the locks: requirements.lock, and those of the images in compose/."""

import re
from pathlib import Path


def pins(lock: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package."""
    found = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:\w+)+)", lock.read_text(), re.M)
    return {name: (version, frozenset(re.findall(r"sha256:\w+", hashes))) for name, version, hashes in found}
