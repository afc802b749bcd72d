"""What a test needs and may not find: programs, and the build that can run it.

A developer need not install all programs to run the tests. In CI (the variable CI is set) a missing program is a
failure."""

import os

import pytest

from rewindmq import builds
from rewindmq.compiler import MODULES


def require(there: object, reason: str) -> None:
    """Skip the test where a program is not `there`, but fail in CI.

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
