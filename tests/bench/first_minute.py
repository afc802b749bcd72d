"""From nothing to the first undo, with a stopwatch: on a machine that has Python, and neither a C compiler nor Java.

    python -m tests.bench.first_minute

It makes an environment in a temporary directory, installs this checkout there with pip and without a cache, runs
`rewindmq try`, and types the command that it prints to undo the purge. Each step has its seconds; pip's output says how
many bytes it downloaded. The aims are 60 s and 60 MB. tests/system/cli/test_cli_try.py checks the steps.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.running import ROOT

AIM_SECONDS, AIM_BYTES = 60, 60_000_000
UNITS = {"kB": 1_000, "MB": 1_000_000, "bytes": 1}
DOWNLOADED = re.compile(r"Downloading \S+ \(([\d.]+) (kB|MB|bytes)\)")


def downloaded(output: str) -> float:
    """Return the bytes that pip says it downloaded."""
    return sum(float(size) * UNITS[unit] for size, unit in DOWNLOADED.findall(output))


def main() -> int:
    began = time.monotonic()
    last = began
    bytes_downloaded = 0.0

    def step(what: str, more: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        print(f"{now - last:6.1f} s  {what}{more}", flush=True)
        last = now

    with tempfile.TemporaryDirectory(prefix="rewindmq-first-minute-") as work:
        home = Path(work)
        bin_directory = home / "v" / "bin"
        environment = {
            "PATH": str(bin_directory),
            "HOME": work,
            "TMPDIR": work,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
        }
        for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY"):
            if name in os.environ:
                environment[name] = os.environ[name]
        subprocess.run([sys.executable, "-m", "venv", str(home / "v")], check=True, env=environment)
        step("python3 -m venv v")
        pip = [str(bin_directory / "pip"), "install", "--no-cache-dir", "--disable-pip-version-check", str(ROOT)]
        done = subprocess.run(pip, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout + done.stderr)
            return 1
        bytes_downloaded = downloaded(done.stdout)
        step("v/bin/pip install .", f"  ({bytes_downloaded / 1e6:.1f} MB)")
        said = subprocess.run(["rewindmq", "--version"], env=environment, capture_output=True, text=True).stdout
        step("rewindmq --version", f"  ({said.strip()})")
        trial = subprocess.Popen(["rewindmq", "try"], env=environment, stdout=subprocess.PIPE, text=True, cwd=work)
        assert trial.stdout is not None
        guide = ""
        while "Ctrl-C" not in guide:
            line = trial.stdout.readline()
            if not line:
                return 1
            guide += line
        step("rewindmq try")
        [undo] = re.findall(r"^Undo it: +(.+)$", guide, re.MULTILINE)
        subprocess.run(shlex.split(undo), env=environment, check=True, stdout=subprocess.DEVNULL)
        step(undo)
        took = last - began
        trial.send_signal(signal.SIGTERM)
        trial.communicate()
    print(f"{took:6.1f} s  in all, and {bytes_downloaded / 1e6:.1f} MB")
    return 0 if took <= AIM_SECONDS and bytes_downloaded <= AIM_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
