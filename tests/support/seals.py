"""Keys for seals, and seals of a data directory, by the commands that an operator uses."""

import subprocess
import sys
from pathlib import Path

from tests.support.needs import needed
from tests.support.running import ROOT


def seal(data: Path, key: Path) -> None:
    command = [sys.executable, "-m", "rewindmq", "seal", "--data", str(data), "--key", str(key)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def keys(directory: Path) -> tuple[Path, str]:
    """The file of a new key, and its public half."""
    key = directory / "seal.key"
    subprocess.run(
        [needed("openssl"), "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True, capture_output=True
    )
    public = subprocess.run(
        [needed("openssl"), "pkey", "-in", str(key), "-pubout"], check=True, capture_output=True, text=True
    )
    return key, public.stdout
