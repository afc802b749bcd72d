"""Which tests run for a mutant (tests/support/mutants.py)."""

import pytest

from tests.support.mutants import Mutant, Ran, chosen_for

FILE = "projections/a.py"
TESTS = {
    "slow": Ran(30.0, {FILE: 1 << 7}),
    "fast": Ran(1.0, {FILE: 1 << 7 | 1 << 9}),
    "medium": Ran(9.0, {FILE: 1 << 7}),
    "elsewhere": Ran(0.1, {"projections/b.py": 1 << 7}),
    "other line": Ran(0.2, {FILE: 1 << 3}),
}


def mutant(line: int, statement: int, at_import: bool = False, path: str = FILE) -> Mutant:
    return Mutant(path, None, None, None, line, statement, at_import)


@pytest.mark.parametrize(
    ("changed", "seconds", "expected"),
    [
        (mutant(7, 7), 100, ["fast", "medium", "slow"]),
        (mutant(7, 7), 10, ["fast", "medium"]),
        (mutant(7, 7), 0.5, ["fast"]),  # one in any case
        (mutant(8, 7), 10, ["fast", "medium"]),  # a line that begins no statement: the tests of its statement
        (mutant(9, 7), 100, ["fast"]),
        (mutant(5, 5), 100, []),
        (mutant(5, 5, True), 2, ["other line", "fast"]),  # at an import: what runs anything in the file
        (mutant(5, 5, True, "projections/c.py"), 0.4, ["elsewhere", "other line"]),
    ],
)
def test_the_fast_tests_that_run_the_line_come_first(changed: Mutant, seconds: float, expected: list[str]) -> None:
    assert chosen_for(changed, TESTS, seconds) == expected
