"""The tests. Where pytest runs, a failed `assert` of tests/support says its values as one of a test file does."""

import sys

if "pytest" in sys.modules:  # programs of tests/support run without it
    sys.modules["pytest"].register_assert_rewrite("tests.support")
