"""Tests interrupt the product at the points that it announces, and patch none of its private names."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rewindmq import failpoints
from tests.support.failpoints import POINTS, armed, once

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "projections", "engine", "spark_replay")
SOURCES = [
    *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))),
    *(ROOT / "rewindmq").glob("*.py"),
]
POINTS_FILE = ROOT / "rewindmq" / "failpoints.py"
NAMED = re.compile(r"[a-z]+\.(?:before|after)_[a-z]+")
HERE = (ROOT / "tests/support/failpoints.py", ROOT / "tests/tidy/test_failpoints.py")
TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path not in HERE]
PATCHES = {"setattr", "delattr", "patch", "object", "multiple", "dying", "before"}  # the last two: of tests/support
# Names of Prometheus and of OpenLineage, in lists that are for no patch.
OF_OTHERS = {
    ("tests/system/http/test_http_monitoring.py", "_count"),
    ("tests/system/http/test_http_monitoring.py", "_sum"),
    ("tests/system/spark/test_spark_lineage.py", "_producer"),
}
PRIVATE = re.compile(r"_[a-z]\w*", re.IGNORECASE)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def announced() -> Iterator[ast.Call]:
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.reached":
                yield node


def test_every_announced_point_is_listed_and_armed_and_no_other() -> None:
    names = Counter(str(ast.literal_eval(call.args[0])) for call in announced())
    assert set(names) == set(POINTS)
    assert not [each for each, times in names.items() if times > 1 or not NAMED.fullmatch(each)]
    texts = {node.value for path in TESTS for node in nodes(path) if isinstance(node, ast.Constant)}
    assert set(POINTS) <= texts, "no test arms it"


def test_nothing_in_the_product_arms_a_point() -> None:
    """It knows one function of the module, and the module knows no environment."""
    mentions = [
        f"{name(path)}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value).endswith("failpoints")
            and node.attr != "reached"
        )
        or (isinstance(node, ast.ImportFrom) and (node.module or "").endswith("failpoints"))
    ]
    assert not mentions
    imported = [node for node in nodes(POINTS_FILE) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(each) for each in imported] == ["from collections.abc import Callable"]


@cache
def private_names() -> frozenset[str]:
    """Return the private names of the product: of functions, classes, attributes and modules' variables."""
    found = set()
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(each for each in found if PRIVATE.fullmatch(each))


def is_private(text: object) -> bool:
    return isinstance(text, str) and text.rpartition(".")[2] in private_names()


def patches(tree: Iterator[ast.AST] | tuple[ast.AST, ...]) -> Iterator[tuple[int, str]]:
    """Yield the private names of the product that code patches, or lists for a patch, each with its line."""
    for node in tree:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if is_private(node.attr) and ast.unparse(node.value) not in ("self", "cls"):
                yield node.lineno, ast.unparse(node)
            continue
        listed: list[ast.expr | None] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in PATCHES:
            listed = [*node.args]
        elif isinstance(node, ast.Tuple | ast.List):
            listed = [*node.elts]
        elif isinstance(node, ast.Dict):
            listed = [*node.keys, *node.values]
        for each in listed:
            if isinstance(each, ast.Constant) and is_private(each.value):
                yield each.lineno, str(each.value)


def test_no_test_patches_a_private_name() -> None:
    found = [
        f"{name(path)}:{line}: {patched}"
        for path in TESTS
        for line, patched in patches(nodes(path))
        if (name(path), patched) not in OF_OTHERS
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('monkeypatch.setattr(Trimming, "_end", killed)', ["_end"]),
        (
            'patch("rewindmq.engine.keeping.trim.Trimming._end", killed)',
            ["rewindmq.engine.keeping.trim.Trimming._end"],
        ),
        ('STEPS = [(Trimming, "_end"), (Trimming, "end")]', ["_end"]),
        ("trimming._end = killed", ["trimming._end"]),
        ("del trimming.history._end", ["trimming.history._end"]),
        ("self._end = killed", []),
        ("trimming._end(event)", []),
        ('monkeypatch.setattr(Trimming, "end", killed)', []),
        ("app.amqp._producer_pool = None", []),
    ],
)
def test_a_patch_of_a_private_name_is_found(source: str, found: list[str]) -> None:
    assert [patched for _, patched in patches(ast.walk(ast.parse(source)))] == found


def test_a_point_acts_while_it_is_armed() -> None:
    acted: list[object] = []
    failpoints.reached("trim.before_end", "too early")
    with armed("trim.before_end", acted.append):
        failpoints.reached("trim.before_end", "in time")
        failpoints.reached("trim.after_end", "elsewhere")
    failpoints.reached("trim.before_end", "too late")
    assert acted == ["in time"]
    with armed("trim.before_end", once(acted.append)):
        failpoints.reached("trim.before_end", "once")
        failpoints.reached("trim.before_end", "twice")
    assert acted == ["in time", "once"]


def test_a_point_that_is_unknown_or_not_reached_fails_the_test() -> None:
    with pytest.raises(LookupError, match=r"no point is called trim\.sometime"), armed("trim.sometime", print):
        pass
    with pytest.raises(AssertionError, match=r"trim\.before_end was not reached"), armed("trim.before_end", print):
        pass
    with pytest.raises(ZeroDivisionError), armed("trim.before_end", print):
        raise ZeroDivisionError
    assert not failpoints.armed
