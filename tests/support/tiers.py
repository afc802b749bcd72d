"""The options `--tier` and `--build`: which tests run, by the marks beside them.

--tier quick     what `make check` and `make test` run: no `long` test, and none that asks an S3 server; few examples of
                 each property
--tier rest      what quick left out, and whole what quick shortens: properties, and tests that ask `rounds`
--tier all       quick and rest: what CI runs
--tier rare      `rare` tests, which the others leave out, whether or not they are `long`

    @pytest.mark.long                       a test; pytest.param(..., marks=pytest.mark.long) a parameter of it
    @pytest.mark.long(seed=range(12, 60))   a test where its parameter, or its fixture, `seed` has one of these values
    pytestmark = pytest.mark.long           a file, in one line

Without a tier pytest runs every test that it is given.

--build compiled    all but `of_pure`; fails at once where the pure build runs
--build pure        only `of_pure`; fails at once where the compiled build runs

    pytestmark = pytest.mark.of_pure        a file; in a conftest.py all files of its folder

`of_compiled` marks tests of the compiled build (rewindmq/builds.py) in the same way. The pure build leaves them out.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from rewindmq import builds
from tests.support.examples import rounds

TIERS = ("quick", "rest", "all", "rare")
PYTESTMARK = re.compile(r"^pytestmark = ([^#\n]*)", re.MULTILINE)
WHOLE = re.compile(r"pytest\.mark\.(\w+)\b(?!\()")  # not one with arguments


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default="", help="which tests to run: tests/support/tiers.py")
    kinds = (builds.COMPILED, builds.PURE)
    parser.addoption("--build", choices=kinds, default="", help="the build that must run: tests/support/tiers.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files of other builds and tiers: each process of pytest collects all tests for itself."""
    if not collection_path.name.startswith("test_"):
        return None
    tier, build = config.getoption("--tier"), config.getoption("--build")
    return True if leaves_out(collection_path, tier, builds.running().kind, build) else None


def leaves_out(file: Path, tier: str, build: str, asked: str) -> bool:
    """Return True if no test of a file runs. `build`: the one that runs. `asked`: the value of --build, or empty."""
    if tier == "quick" and not marks_in(file).isdisjoint({"long", "rare"}):
        return True
    of_builds = marks_in(file) | marks_in(file.with_name("conftest.py"))
    if asked and ("of_pure" in of_builds) != (asked == builds.PURE):
        return True
    return build == builds.PURE and "of_compiled" in of_builds


@cache
def marks_in(file: Path) -> set[str]:
    """Return the marks that a file has as a whole, without importing it."""
    text = file.read_text() if file.exists() else ""
    return {mark for marks in PYTESTMARK.findall(text) for mark in WHOLE.findall(marks)}


def belongs(item: pytest.Item, tier: str) -> bool:
    """Return True if a tier runs a test. `tier`: empty if none was named."""
    if not tier:
        return True
    rare = is_marked(item, "rare")
    if rare or tier == "rare":
        return rare and tier == "rare"
    if tier == "all" or (tier == "rest" and is_shortened(getattr(item, "function", None))):
        return True
    return (is_marked(item, "long") or asks_a_store(item)) == (tier == "rest")


def is_marked(item: pytest.Item, name: str) -> bool:
    """Return True if a test has a mark that holds for the values of its parameters."""
    values = getattr(getattr(item, "callspec", None), "params", {})
    for mark in item.iter_markers(name):
        if mark.args or not mark.kwargs.keys() <= values.keys():
            raise pytest.UsageError(f"{item.nodeid}: its mark {name} names what is not a parameter")
        if all(values[parameter] in wanted for parameter, wanted in mark.kwargs.items()):
            return True
    return False


def asks_a_store(item: pytest.Item) -> bool:
    """It starts a server of object storage, which a fresh machine has to build: so the quick tier leaves it out."""
    return not {"s3", "cloud"}.isdisjoint(getattr(item, "fixturenames", ()))


def is_shortened(function: Callable[..., object] | None) -> bool:
    """The quick tier tries it less often (tests/support/examples.py)."""
    if function is None:
        return False
    plain = inspect.unwrap(function)
    asks = rounds.__name__ in plain.__code__.co_names and plain.__globals__.get(rounds.__name__) is rounds
    return is_hypothesis_test(function) or asks
