"""Marks of tests (tests/support/tiers.py) are where they count, and no expensive test is in the quick tier unmarked."""

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.running import ROOT
from tests.support.tiers import is_marked, is_shortened, marks_in

FILES = sorted((ROOT / "tests").rglob("test_*.py"))
# A Kafka that other files do not use, and a RabbitMQ with its plugins.
STARTS = re.compile(r"\bkafka3\b|\bKafkaCluster\(|\bstart_management\(")
OF_A_PART = re.compile(r"(?:@|marks=)pytest\.mark\.(?:of_pure|of_compiled)|^pytestmark = \[$", re.MULTILINE)


def test_a_file_that_starts_a_kafka_of_its_own_is_long() -> None:
    found = [file for file in FILES if file.is_relative_to(ROOT / "tests/system") and STARTS.search(file.read_text())]
    assert len(found) > 5, "no file is looked at"
    assert not [str(file) for file in found if marks_in(file).isdisjoint({"long", "rare"})]


def test_a_build_is_named_for_a_whole_file_in_one_line() -> None:
    """Files are left out by that line, before they are imported."""
    assert not [str(file) for file in FILES if OF_A_PART.search(file.read_text())]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("pytestmark = pytest.mark.long\n", {"long"}),
        ("import pytest\n\npytestmark = [pytest.mark.timeout(9), pytest.mark.rare]  # pytest.mark.long\n", {"rare"}),
        ('pytestmark = pytest.mark.long(nodes=["all"])\n', set()),
        ("@pytest.mark.long\ndef test() -> None: ...\n", set()),
    ],
)
def test_the_marks_of_a_whole_file(text: str, marks: set[str], tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(text)
    assert marks_in(file) == marks


@pytest.mark.parametrize(
    ("named", "marked"),
    [
        ({}, True),
        ({"seed": range(3, 9)}, True),
        ({"seed": range(3)}, False),
        ({"seed": [3], "place": ["s3"]}, False),
    ],
)
def test_a_mark_may_name_values_of_parameters(named: dict[str, Any], marked: bool) -> None:
    assert is_marked(item(**named), "long") == marked


def test_a_mark_that_names_no_parameter_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="test_some: its mark long names what is not a parameter"):
        is_marked(item(sed=[3]), "long")


def item(**named: Any) -> Any:
    """A test with two parameters, and the mark `long` for some of their values."""
    mark = pytest.mark.long(**named).mark
    params = {"seed": 3, "place": "directory"}
    return SimpleNamespace(nodeid="test_some", callspec=SimpleNamespace(params=params), iter_markers=lambda _: [mark])


def test_a_test_that_quick_shortens_is_whole_in_rest() -> None:
    """CI runs quick, then rest: together they are everything."""
    shortened = [
        (file, function.name)
        for file in FILES
        for function in ast.walk(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_")
        if any(isinstance(node, ast.Name) and node.id == "rounds" for node in ast.walk(function))
    ]
    assert shortened
    for file, name in shortened:
        module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        assert is_shortened(getattr(module, name)), f"{file}: {name}"
