"""The layout as a test: imports flow one way, the machine is pure, files stay short, names mean something."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("schemas", "projections", "engine", "spark_replay")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# What a package may import of ours (besides itself). The Spark side reads the log, and nothing else of the engine.
ALLOWED = {
    "schemas": set(),
    "projections": {"schemas"},
    "engine": {"schemas", "projections"},
    "spark_replay": {"schemas", "projections", "engine.log"},
}
# The machine is a function: nothing of the world (docs/design.md#one-idea).
PURE = {"bisect", "array", "collections", "dataclasses", "hashlib", "heapq", "json", "math", "struct", "typing", "enum"}
IMPURE_CALLS = re.compile(r"\bhash\(|\bid\(|\bopen\(|\bprint\(|\bset\([^)]*\)\s*:|\bfloat\(")
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "misc", "manager"}


def imports(path: Path) -> set[str]:
    """Modules that a file imports, dotted, imports inside functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def imports_that_run(path: Path) -> set[str]:
    """As `imports`, without those for type checkers; and what is taken from a package as the module that it may be."""

    class Running(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    found = set()
    for node in ast.walk(Running().visit(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def module_name(path: Path) -> str:
    return ".".join(("rewindmq", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_imports_flow_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    modules = imports(path)
    assert not {m for m in modules if m.split(".")[0] in PACKAGES}, "the folders are packages of rewindmq"
    ours = {m.removeprefix("rewindmq.") for m in modules if m.startswith("rewindmq.")}
    allowed = ALLOWED[package] | {package}
    wrong = {m for m in ours if not any(m == a or m.startswith(a + ".") for a in allowed)}
    assert not wrong, f"{name(path)} must not import {sorted(wrong)}"


def test_no_file_imports_itself_by_way_of_others() -> None:
    """What is imported for its type alone does not count: it runs nowhere."""
    arrows = {module_name(path): imports_that_run(path) for path in SOURCES}
    graph = {module: arrows[module] & arrows.keys() - {module} for module in arrows}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("path", sorted((ROOT / "projections" / "machine").rglob("*.py")), ids=name)
def test_machine_is_pure(path: Path) -> None:
    own = ("rewindmq.projections.machine", "rewindmq.schemas.")
    foreign = {m for m in imports(path) if m.split(".")[0] not in PURE and not m.startswith(own)}
    assert not foreign, f"{name(path)} imports {sorted(foreign)}: the fold has no clock, chance or I/O"
    code = "\n".join(line for line in ast.unparse(ast.parse(path.read_text())).splitlines())
    assert not IMPURE_CALLS.search(code), f"{name(path)}: {IMPURE_CALLS.search(code)}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_are_short_and_named_for_what_they_do(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600, f"{name(path)}: over 600 lines, split it by purpose"
    assert path.stem not in BANNED_NAMES
    documented = ast.get_docstring(ast.parse(path.read_text()))
    assert path.stem == "__init__" or documented, f"{name(path)}: say what it is for"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_pattern_that_is_not_our_own_is_pcre2s(path: Path) -> None:
    """Python's `re` takes as long as it likes. Whatever comes from outside is matched by
    projections/rules/patterns.py."""
    if path == ROOT / "projections" / "rules" / "patterns.py":  # where Python's own decides what old histories hold
        return
    for node in ast.walk(ast.parse(path.read_text())):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "re" and called.attr != "escape":
            assert isinstance(node, ast.Call)
            pattern = node.args[0]
            parts = pattern.values if isinstance(pattern, ast.JoinedStr) else [pattern]
            foreign = [
                ast.unparse(part) for part in parts
                if not isinstance(part, ast.Constant) and "re.escape" not in ast.unparse(part)
            ]  # fmt: skip
            assert not foreign, f"{name(path)}:{node.lineno}: {foreign}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_functions_fit_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 70, f"{name(path)}:{node.lineno} {node.name} has {length} lines"


def test_every_event_has_a_schema_and_a_handler() -> None:
    from rewindmq.projections.machine.machine import HANDLERS
    from rewindmq.projections.topology.topology import HANDLERS as TOPOLOGY_HANDLERS
    from rewindmq.schemas.events import EVENT_TYPES, NodeAlive

    for event in EVENT_TYPES:
        assert (ROOT / "schemas" / "avsc" / f"{event.__name__}.avsc").exists(), f"{event.__name__} has no schema"
        folded = event is not NodeAlive  # a heartbeat, which is no history
        assert (event in HANDLERS or event in TOPOLOGY_HANDLERS) == folded, f"{event.__name__} has no handler"
