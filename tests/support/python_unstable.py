"""Runs tests under Debian unstable's Python, the newest that Debian has: `make python-unstable`.

    python -m tests.support.python_unstable [OPTIONS AND FILES of pytest]        as root

It copies HEAD into a directory with Debian unstable, makes a virtual environment of the locked packages there, and runs
the quick unit tests, or the tests that you name. docs/development/testing.md has the results.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.debian_unstable import CACHE, installed
from tests.support.needs import needed
from tests.support.running import ROOT

DIRECTORY = CACHE / "python-unstable"
PROGRAM = Path("usr/bin/python3")
PACKAGES = "python3,python3-venv,python3-dev,gcc,git,libc6-dev,make,procps,ca-certificates"
HOME = Path("root/rewindmq")
PASSED_ON = ("PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "HTTPS_PROXY")
RUN = """
set -e
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
exec chroot "$0" /bin/sh -c '
  set -e
  cd /root/rewindmq
  python3 --version
  python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --no-compile --require-hashes -r requirements.lock
  .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
  exec .venv/bin/python -m pytest "$@"' sh "$@"
"""


def main() -> int:
    directory = installed(DIRECTORY, PROGRAM, PACKAGES)
    shutil.rmtree(directory / HOME, ignore_errors=True)
    (directory / HOME).mkdir(parents=True)
    archive = subprocess.run([needed("git"), "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "x", "-C", str(directory / HOME)], input=archive, check=True)
    shutil.copy("/etc/resolv.conf", directory / "etc")
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8", "REWINDMQ_PURE": "1"}
    environment |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    asked = sys.argv[1:] or ["--tier", "quick", "-q", "-n", "2", "tests/unit"]
    # In a private mount namespace, which the kernel removes with the process.
    command = [needed("unshare"), "--mount", "sh", "-c", RUN, str(directory), *asked]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
