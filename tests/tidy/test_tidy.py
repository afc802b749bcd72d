"""The layout as a test: imports flow one way, the machine is pure, files stay short, names mean something."""

import ast
import graphlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.tidy import references

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "projections", "engine", "spark_replay")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
OF_THE_PACKAGE = sorted((ROOT / "rewindmq").glob("*.py"))

# What a package may import of ours (besides itself). The Spark side reads the log, and nothing else of the engine.
# `from rewindmq import builds` is allowed everywhere but in the machine.
ALLOWED = {
    "schemas": set(),
    "projections": {"schemas"},
    "engine": {"schemas", "projections"},
    "spark_replay": {"schemas", "projections", "engine.log", "engine.keeping"},
}
# The rooms of the engine, lowest first. A file imports from its own line and from the lines above it, also where the
# import is for a type only. The embedded log and Kafka are twins on one line. `cli` lies above `process`, for the
# command `start` runs a broker.
LAYERS = (
    ("errors", "file_modes", "logging_setup", "service_manager", "tls"),
    ("log",),
    ("identity",),
    ("host",),
    ("keeping",),
    ("partition",),
    ("config",),
    ("routing",),
    ("erasure",),
    ("broker", "rewind", "placement", "upgrades"),
    ("embedded", "cluster"),
    ("standby",),
    ("definitions", "shovel"),
    ("amqp",),
    ("http",),
    ("reload",),
    ("process",),
    ("cli",),
    ("__main__",),
)
MOST_FILES = 26  # of a room
MOST_LINES = 800  # of a file, which has one subject
# A module is named by a noun. These nouns end as participles do, or are the names of the kinds of log.
PARTICIPLES = re.compile(r"(?:^|_)\w*(?:ing|ed|told|kept|gone|held|known|given|hidden)(?:_|$)")
NOUNS = {
    "routing",
    "keeping",
    "listing",
    "reading",
    "logging_setup",
    "delayed_order",
    "delayed_exchanges",
    "restored_ids",
    "outstanding_policies",
    "partition_pausing",
    "refusing_queues",
}
KINDS_OF_LOG = {"embedded", "shared", "shared_contract", "simulated"}
PLAIN_FILE = re.compile(r"(?<![\w/.])\w+\.py\b")  # a file without its folder
NO_FORMAT = re.compile(r"#\s*fmt:\s*(skip|off)")
# The machine is a function: nothing of the world (docs/design.md#one-idea).
PURE = {"bisect", "array", "collections", "dataclasses", "hashlib", "heapq", "json", "math", "struct", "typing", "enum"}
IMPURE_CALLS = re.compile(r"\bhash\(|\bid\(|\bopen\(|\bprint\(|\bset\([^)]*\)\s*:|\bfloat\(")
# Words of docs/style.md that have a plainer one: the subject is a thing that one can point at, and a program is "it".
BANNED_WORDS = re.compile(
    r"\b(?:whoever|whomever|of which|of whom|what there is|as to what|he|his|him|himself)\b", re.IGNORECASE
)
ABOUT_WORDS = {"docs/style.md"}  # it quotes them
# A docstring opens with a verb or a noun, and not with a clause that stands for one.
CLAUSE = re.compile(r"(?:What|Whether|Those|How)\b")
# Forms of states, which only our own code reads. Their digests are in histories, so they stay as they are.
WITH_NAN = {
    "projections/machine/serialization/pack.py",
    "projections/topology/fold_image.py",
    "projections/topology/topology.py",
}
# Events with many fields: only these files pass more than two of them by position, for speed (schemas/events.py).
NAMED_FIELDS = {"Published", "QueueDeclared"}
BY_POSITION = {"engine/amqp/publish_path.py", "schemas/codec.py"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "misc", "manager"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


def imported_modules(path: Path) -> set[str]:
    """Modules that a file imports. A name from a package counts as the module that it may be."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def imports(path: Path) -> set[str]:
    """Modules that a file imports, dotted, imports inside functions included."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def module_name(path: Path) -> str:
    return ".".join(("rewindmq", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def of_every(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """A rule about one file as one test about all of them, which names every file that breaks it."""

    def decorate(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            offenders = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    offenders.append(f"{name(path)}: {error}")
            assert paths, "no file is looked at"
            assert not offenders, "\n".join(offenders)

        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return decorate


@of_every(SOURCES)
def test_imports_flow_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    modules = imports(path)
    assert not {m for m in modules if m.split(".")[0] in PACKAGES}, "the folders are packages of rewindmq"
    ours = {m.removeprefix("rewindmq.") for m in modules if m.startswith("rewindmq.")}
    allowed = ALLOWED[package] | {package}
    wrong = {m for m in ours if not any(m == a or m.startswith(a + ".") for a in allowed)}
    assert not wrong, f"{name(path)} must not import {sorted(wrong)}"


@of_every([*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))])
def test_events_of_many_fields_are_made_with_names(path: Path) -> None:
    by_position = [
        node.lineno
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in NAMED_FIELDS and len(node.args) > 2
    ]
    allowed = 1 if name(path) in BY_POSITION else 0
    assert len(by_position) <= allowed, f"lines {by_position}: name the arguments behind the second"


@of_every([path for path in SOURCES if path.is_relative_to(ROOT / "engine")])
def test_no_callback_is_set_from_outside(path: Path) -> None:
    """It comes in the constructor, or with the listener of `start` (engine/process.py)."""
    for node in nodes(path):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
                    callback = target.attr.startswith("on_") or isinstance(node.value, ast.Lambda)
                    assert not callback, f"line {node.lineno}: {ast.unparse(target)} is set from outside"


def test_no_file_imports_itself_by_way_of_others() -> None:
    """An import for a type alone counts as well: files that know each other have one subject, or lack a protocol."""
    arrows = {module_name(path): imported_modules(path) for path in SOURCES}
    graph = {module: arrows[module] & arrows.keys() - {module} for module in arrows}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def rooms_imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (room, module) of the engine's modules that a file imports, for types too."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rewindmq.engine"):
            module = node.module.removeprefix("rewindmq.engine").removeprefix(".")
            for name in [module] if module else [alias.name for alias in node.names]:
                yield name.split(".")[0], name


def test_the_engine_has_layers() -> None:
    floors = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
    engine = ROOT / "engine"
    arrows = {
        (str(path.relative_to(engine)), module)
        for path in sorted(engine.rglob("*.py"))
        for room, module in rooms_imported(path)
        if floors[room] > floors[path.relative_to(engine).parts[0].removesuffix(".py")]
    }
    assert not arrows


def test_rooms_are_small() -> None:
    files: dict[Path, int] = {}
    for path in SOURCES:
        files[path.parent] = files.get(path.parent, 0) + (path.stem != "__init__")
    assert not {name(room): count for room, count in files.items() if count > MOST_FILES}


@of_every([path for path in SOURCES if path.stem == "__init__"])
def test_a_room_names_its_modules(path: Path) -> None:
    """In `__init__` or in the room's README, so that a newcomer sees in one place what is there."""
    readme = path.with_name("README.md")
    told = path.read_text() + (readme.read_text() if readme.exists() else "")
    modules = [each.name for each in path.parent.glob("*.py") if each.stem not in ("__init__", "__main__")]
    rooms = [f"{each.parent.name}/" for each in path.parent.glob("*/__init__.py")]
    silent = [each for each in sorted([*modules, *rooms]) if not is_named(each, name(path.parent), told)]
    assert not silent, f"say in a few words what these are: {silent}"
    foreign = [
        each for each in PLAIN_FILE.findall(ast.get_docstring(parsed(path)) or "") if not path.with_name(each).exists()
    ]
    assert not foreign, f"not in this room: {foreign}. Name a file of another one with its folder"


def is_named(module: str, room: str, text: str) -> bool:
    """Return True if the text names a module of the room: without a folder, or with the room's own path."""
    return re.search(rf"(?<![\w/]){re.escape(module)}|{re.escape(f'{room}/{module}')}", text) is not None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("homes.py   names", True),
        ("see `engine/routing/homes.py`", True),
        ("engine/placement/homes.py", False),
        ("other_homes.py", False),
        ("homes", False),
    ],
)
def test_a_module_is_named_by_its_room(text: str, named: bool) -> None:
    assert is_named("homes.py", "engine/routing", text) == named


def test_modules_are_named_by_nouns() -> None:
    stems = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    assert {stem for stem in stems if PARTICIPLES.search(stem)} == NOUNS | KINDS_OF_LOG


def test_the_formatter_has_every_line() -> None:
    assert not [name(path) for path in SOURCES if NO_FORMAT.search(path.read_text())]


@of_every(sorted((ROOT / "projections" / "machine").rglob("*.py")))
def test_machine_is_pure(path: Path) -> None:
    own = ("rewindmq.projections.machine", "rewindmq.schemas.")
    foreign = {m for m in imports(path) if m.split(".")[0] not in PURE and not m.startswith(own)}
    assert not foreign, f"{name(path)} imports {sorted(foreign)}: the fold has no clock, chance or I/O"
    code = "\n".join(line for line in ast.unparse(parsed(path)).splitlines())
    assert not IMPURE_CALLS.search(code), f"{name(path)}: {IMPURE_CALLS.search(code)}"


@of_every([*SOURCES, *OF_THE_PACKAGE])
def test_files_are_short_and_named_for_what_they_do(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES, f"{name(path)}: is it one subject?"
    assert path.stem not in BANNED_NAMES
    documented = ast.get_docstring(parsed(path))
    assert path.stem == "__init__" or documented, f"{name(path)}: say what it is for"


@of_every(SOURCES)
def test_a_pattern_that_is_not_our_own_is_pcre2s(path: Path) -> None:
    """projections/rules/patterns.py matches patterns from outside: Python's `re` has no limit of time."""
    if path == ROOT / "projections" / "rules" / "patterns.py":  # where Python's own decides what old histories hold
        return
    for node in nodes(path):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "re" and called.attr != "escape":
            assert isinstance(node, ast.Call)
            pattern = node.args[0]
            parts = pattern.values if isinstance(pattern, ast.JoinedStr) else [pattern]
            foreign = [
                ast.unparse(part)
                for part in parts
                if not isinstance(part, ast.Constant) and "re.escape" not in ast.unparse(part)
            ]
            assert not foreign, f"{name(path)}:{node.lineno}: {foreign}"


@of_every([*SOURCES, *OF_THE_PACKAGE])
def test_json_has_no_nan(path: Path) -> None:
    """RFC 8259 knows neither NaN nor Infinity. `json_text` makes text of them; all other code has none."""
    allowed = path.relative_to(ROOT).as_posix() in WITH_NAN
    for node in nodes(path):
        assert not isinstance(node, ast.ImportFrom) or node.module != "json", f"{name(path)}: import json"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump", "json.JSONEncoder"):
            said = [ast.unparse(each.value) for each in node.keywords if each.arg == "allow_nan"]
            assert said == [str(allowed)], f"{name(path)}:{node.lineno}: allow_nan={allowed} is missing"


@of_every(sorted((ROOT / "tests").rglob("test_*.py")))
def test_test_names_stay_under_70_characters(path: Path) -> None:
    named = ast.FunctionDef | ast.AsyncFunctionDef
    long = [node.name for node in nodes(path) if isinstance(node, named) and len(node.name) >= 70]
    assert not long


@of_every(sorted((ROOT / "tests").rglob("*.py")))
def test_no_test_file_is_imported(path: Path) -> None:
    """Tests share helpers by way of tests/support: so a test is read without another one."""
    wrong = imported_test_files(imports(path) | imported_modules(path))
    assert not wrong, f"move what is shared into tests/support: {sorted(wrong)}"


def imported_test_files(modules: Iterable[str]) -> set[str]:
    """Return the test files among these dotted names."""
    return {module for module in modules if module.rpartition(".")[2].startswith("test_") and is_file(module)}


def is_file(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize(
    "source",
    [
        "from tests.tidy.test_tidy import name",
        "from tests.tidy import test_tidy as other",
        "import tests.tidy.test_tidy",
        "def within():\n    from tests.tidy.test_tidy import name",
    ],
)
def test_an_imported_test_file_is_found(source: str, tmp_path: Path) -> None:
    file = tmp_path / "importing.py"
    file.write_text(source)
    assert imported_test_files(imports(file) | imported_modules(file)) == {"tests.tidy.test_tidy"}


@of_every([*SOURCES, *OF_THE_PACKAGE])
def test_functions_fit_a_screen(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 70, f"{name(path)}:{node.lineno} {node.name} has {length} lines"


def banned_words(lines: Iterable[tuple[int, str]]) -> list[str]:
    """The banned words in the lines of a file, each with its line, also where a line break parts the words."""
    starts, text = [], ""
    for number, line in lines:
        starts.append((len(text), number))
        text += line.strip(" #") + " "
    return [
        f"line {max(number for start, number in starts if start <= found.start())}: {found[0]}"
        for found in BANNED_WORDS.finditer(text)
    ]


def test_code_and_docs_are_in_plain_english() -> None:
    """Comments, docstrings and pages, as docs/style.md has it."""
    names = (*references.sources(), *references.documents())
    assert len(names) > 800, "no file is looked at"
    offenders = {name: banned_words(references.prose_of(name)) for name in names if name not in ABOUT_WORDS}
    assert not {name: words for name, words in offenders.items() if words}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("# Whoever reads adds both.", "Whoever"),
        ("partitions, of which there are some", "of which"),
        ("| it asks for what there is |", "what there is"),
        ("the node goes on before he answers", "he"),
        ("the client gets his answer", "his"),
    ],
)
def test_a_banned_word_is_found(line: str, word: str) -> None:
    assert banned_words([(7, line)]) == [f"line 7: {word}"]
    parted = list(enumerate(line.replace(" ", "\n# ").splitlines(), 1))
    assert [found.partition(": ")[2] for found in banned_words(parted)] == [word]


def clauses(tree: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the line and the first line of text of each docstring that opens with a clause."""
    for node in tree:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node, clean=False) or "").lstrip()
            if CLAUSE.match(text):
                yield f"{node.body[0].lineno}: {text.splitlines()[0]}"


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    """The product's, the examples' and the tests', as docs/style.md has it."""
    names = references.sources()
    assert len(names) > 800, "no file is looked at"
    offenders = [f"{name}:{clause}" for name in names for clause in clauses(nodes(ROOT / name))]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""What a broker keeps."""', ["1: What a broker keeps."]),
        ('"""\nThose of a node.\n"""', ["1: Those of a node."]),
        ('class A:\n    """How it ends:\n    soon."""', ["2: How it ends:"]),
        ('def f():\n    async def g():\n        """Whether: a flag."""', ["3: Whether: a flag."]),
        ('"""However, it may."""\ndef f():\n    """Return what is left."""\n    "What is no docstring."', []),
    ],
)
def test_a_docstring_that_opens_with_a_clause_is_found(source: str, found: list[str]) -> None:
    assert list(clauses(ast.walk(ast.parse(source)))) == found


def test_every_event_has_a_schema_and_a_handler() -> None:
    from rewindmq.projections.machine.machine import HANDLERS
    from rewindmq.projections.topology.topology import HANDLERS as TOPOLOGY_HANDLERS
    from rewindmq.schemas.events import EVENT_TYPES, NodeAlive, QueueRefuses

    for event in EVENT_TYPES:
        assert (ROOT / "schemas" / "avsc" / f"{event.__name__}.avsc").exists(), f"{event.__name__} has no schema"
        folded = event not in (NodeAlive, QueueRefuses)  # in the topic of heartbeats, which is no history
        assert (event in HANDLERS or event in TOPOLOGY_HANDLERS) == folded, f"{event.__name__} has no handler"
