"""What a test needs of the machine and may not find there. Nobody should have to install all of it to run the tests;
but in CI (the variable CI is set) nothing is skipped."""

import os

import pytest


def require(there: object, reason: str) -> None:
    """Where it is not `there`, the test (at the top of a module: all of its tests) is skipped, and fails in CI."""
    if there:
        return
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
