"""Programs that a test needs and a machine may lack, and the build that can run it.

`make test` asks for Python, Java 17 and Maven. A test that needs another program is skipped where that is missing, with
the reason. In CI (the variable CI is set) it fails. No other file looks a program up (tests/tidy/test_programs.py)."""

import os
import shutil

import pytest

from rewindmq import builds
from rewindmq.compiler import MODULES

# Each program that tests start, with its source.
PROGRAMS = {
    "chromium": "apt-get install chromium",
    "debootstrap": "apt-get install debootstrap",
    "git": "apt-get install git",
    "go": "Go, https://go.dev",
    "groff": "apt-get install groff-base",
    "haproxy": "apt-get install haproxy",
    "java": "apt-get install openjdk-17-jre-headless",
    "make": "apt-get install make",
    "mvn": "apt-get install maven",
    "node": "apt-get install nodejs",
    "npm": "apt-get install npm",
    "openssl": "apt-get install openssl",
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
    "rabbitmq-server": "apt-get install --no-install-recommends rabbitmq-server",
    "ssh-add": "apt-get install openssh-client",
    "ssh-agent": "apt-get install openssh-client",
    "ssh-keygen": "apt-get install openssh-client",
    "systemd-analyze": "apt-get install systemd",
    "unshare": "apt-get install util-linux",
}
# Beside PATH. RabbitMQ's is first: what Debian has of it on the path changes the user.
FIRST = "/usr/lib/rabbitmq/bin"
LAST = ("/usr/local/sbin", "/usr/sbin")


def found(program: str) -> str | None:
    """Return the path of a program of PROGRAMS or of an acceptance suite; None if it is not installed."""
    return shutil.which(program, path=os.pathsep.join((FIRST, os.environ.get("PATH", os.defpath), *LAST)))


def needed(program: str) -> str:
    """Return the path of a program; skip the test where it is not installed, and fail in CI."""
    path = found(program)
    require(path, f"{program} is not installed: {PROGRAMS[program]}")
    return str(path)


def require(there: object, reason: str) -> None:
    """Skip the test unless something it needs is `there`; in CI let it fail.

    At the top of a module it skips all tests of the module."""
    if there:
        return
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def require_pure(reason: str) -> None:
    """Skip the test where the compiled build runs: compiled code calls functions and methods directly.

    So it does not see what a test puts in their place. The behaviour is the same source on both builds, and the pure
    build runs the test in CI."""
    if builds.running().kind == builds.COMPILED:
        pytest.skip(f"only on the pure build: {reason}")


def require_patchable(target: str) -> None:
    """Skip the test where code that a test puts in the place of `target` would not be called."""
    for module in MODULES:
        if target.startswith(module + "."):
            require_pure(f"compiled code calls {target} directly")
