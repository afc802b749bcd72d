"""Programs that a test needs and may not find.

A developer need not install all of them to run the tests. In CI (the variable CI is set) nothing is skipped."""

import os

import pytest


def require(there: object, reason: str) -> None:
    """Skip the test where a program is not `there`, but fail in CI.

    At the top of a module it skips all tests of the module."""
    if there:
        return
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
