"""Reads the references in code, tests and docs: numbers of behaviours, files, headings, modules.

    python -m tests.tidy.references           prints every reference that leads nowhere
    python -m tests.tidy.references --write   corrects paths of files that moved, gives a new behaviour its number, and
                                              writes the lines "Tests:" of docs/behaviours/ anew

A behaviour is a heading `### S-001` or `### B-01` in docs/behaviours/. A test holds it when its name or its text says
the number (`test_s001_...`, or `S-001` in a docstring, comment or table). Every behaviour has a line "Tests:" or a
line "No test:" with the reason.

A new behaviour has the heading `### S-next` or `### B-next`, and its tests say S-next, or `test_snext_...`. `--write`
puts the next number in the place of the word, in the page, in tests and in the product.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.needs import needed

ROOT = Path(__file__).resolve().parents[2]
CODE = ("rewindmq", "engine", "projections", "schemas", "spark_replay", "examples", "compose", "tests")
NUMBER = re.compile(r"\b([SB])-(\d{2,3})\b|_([sb])(\d{2,3})(?=_|\b)")
HEADING = re.compile(r"^### ([SB]-\d{2,3})$", re.MULTILINE)
NEXT = re.compile(r"^### ([SB])-next$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w/.:~{}<>*$-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|avsc|ipynb|yaml|toml))(#[\w-]+)?(?![\w*])")
FOLDER = re.compile(
    r"(?<![\w/.:~{}<>*$-])((?:engine|projections|schemas|spark_replay|tests|docs)(?:/[\w-]+)+)/?(?![\w.*/<>-]|\.\w)"
)
COMMENT = re.compile(r"(?:^\s*|  )#.*")
MODULE = re.compile(r"\brewindmq\.(?:engine|projections|schemas|spark_replay)(?:\.[A-Za-z_]\w*)*")
# Documents that were outside the repository, by the names that they had there.
OUTSIDE = re.compile(r"\b(?:BEHAVIOURS|DESIGN|REDESIGN|STYLE)\b(?!\.md)")
# Files that belong to other programs, or that a reader makes.
MADE_HERE = re.compile(r"^```python (\S+)$", re.MULTILINE)  # the programs of a tutorial
FOREIGN = {"python_streaming_source_runner.py", "direct_reply_to.py", "test_rabbitmq.py", "file.py"}
MADE = ("target",)  # folders that a build makes


@cache
def files() -> tuple[str, ...]:
    """Every file of the repository, also those that are not committed yet."""
    command = [needed("git"), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(name for name in listed.splitlines() if (ROOT / name).is_file()))


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def documents() -> list[str]:
    return [name for name in files() if name.endswith(".md") and name != "CHANGELOG.md"]


def sources() -> list[str]:
    return [name for name in files() if name.endswith(".py") and name.startswith(CODE)]


def pages() -> list[str]:
    return [name for name in documents() if name.startswith("docs/behaviours/")]


@cache
def behaviours() -> dict[str, str]:
    """The page of each number."""
    return {number: page for page in pages() for number in HEADING.findall(text_of(page))}


def numbers_in(text: str) -> set[str]:
    return {f"{(m[1] or m[3]).upper()}-{m[2] or m[4]}" for m in NUMBER.finditer(text)}


@cache
def holders() -> dict[str, dict[str, set[str]]]:
    """The test files that name each number, and the tests of each such file (none: the file as a whole)."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in files():
        if not name.startswith("tests/") or name.startswith("tests/tidy/") or not name.endswith((".py", ".txt")):
            continue
        short = Path(name).name
        named = numbers_in(text_of(name))
        for number in named:
            found[number][short] |= set()
        if named and name.endswith(".py"):
            for function, text in _functions(name):
                for number in numbers_in(text):
                    found[number][short].add(function)
    return found


def _functions(name: str) -> Iterator[tuple[str, str]]:
    """Every function at the top of a file, with its text: decorators, comments and all."""
    lines = text_of(name).splitlines()
    for node in ast.parse(text_of(name)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, "\n".join(lines[first - 1 : node.end_lineno])


def tests_line(number: str) -> str:
    """The line "Tests:" of a behaviour; empty if no test names it."""
    parts = [
        f"`{name}`" + (f" ({', '.join(f'`{test}`' for test in sorted(tests))})" if tests else "")
        for name, tests in sorted(holders().get(number, {}).items())
    ]
    return "\n".join(textwrap.wrap(f"Tests: {'; '.join(parts)}.", 118, break_on_hyphens=False)) if parts else ""


def rewritten(page: str) -> str:
    """A page of behaviours with its lines "Tests:" as the tests are now."""
    head, *sections = re.split(r"(?m)^(?=### |## )", text_of(page))
    for place, section in enumerate(sections):
        found = HEADING.match(section)
        if found is None:
            continue
        kept = re.sub(r"\n\nTests: .*?(?=\n\n|\n*\Z)", "", section, flags=re.DOTALL).rstrip("\n")
        line = tests_line(found[1])
        sections[place] = kept + (f"\n\n{line}" if line else "") + "\n\n"
    return (head + "".join(sections)).rstrip("\n") + "\n"


def numbers_taken(kind: str) -> list[int]:
    """The numbers of all behaviours of a kind, S or B."""
    return [int(number[2:]) for number in behaviours() if number[0] == kind]


def with_number(text: str, kind: str, number: int) -> str:
    """A text with the number in the place of the word `next`."""
    width = 3 if kind == "S" else 2
    text = re.sub(rf"\b{kind}-next\b", f"{kind}-{number:0{width}}", text)
    return re.sub(rf"_{kind.lower()}next(?=_|\b)", f"_{kind.lower()}{number:0{width}}", text)


def give_numbers() -> None:
    """Give a new behaviour its number, in every file that names it."""
    for kind in sorted({kind for page in pages() for kind in NEXT.findall(text_of(page))}):
        number = max(numbers_taken(kind)) + 1
        for name in (*sources(), *pages(), *(name for name in files() if name.endswith(".txt"))):
            if name.startswith("tests/tidy/"):  # they explain the word
                continue
            text = with_number(text_of(name), kind, number)
            if text != text_of(name):
                (ROOT / name).write_text(text)


# -- dead references: each function yields lines for people -------------------------------------------------------


def unknown_numbers() -> Iterator[str]:
    for name in (*sources(), *documents()):
        for number in sorted(numbers_in(text_of(name)) - behaviours().keys()):
            yield f"{name}: {number} is no behaviour of docs/behaviours/"


def without_number() -> Iterator[str]:
    for page in pages():
        if NEXT.search(text_of(page)):
            yield f"{page}: a new behaviour has no number yet: run `python -m tests.tidy.references --write`"


def without_test() -> Iterator[str]:
    """Behaviours without a test and without a reason, and those with both."""
    for page in pages():
        for section in re.split(r"(?m)^(?=### |## )", text_of(page)):
            found = HEADING.match(section)
            if found is not None and ("\n\nNo test: " in section) == (found[1] in holders()):
                yield f"{page}: {found[1]} needs either a test that names it or a line 'No test:' with the reason"


def documents_outside() -> Iterator[str]:
    for name in (*sources(), *documents()):
        for line, text in enumerate(text_of(name).splitlines(), 1):
            if OUTSIDE.search(text) and name != "tests/tidy/references.py":
                yield f"{name}:{line}: names a document that is not in the repository: {text.strip()}"


@cache
def prose_of(name: str) -> tuple[tuple[int, str], ...]:
    """The lines that people read: all of a document; comments and docstrings of a source.

    A string with two spaces and a `#` in it counts as a comment: tokenize would know better, and takes several times as
    long."""
    return tuple(_prose(name))


def _prose(name: str) -> Iterator[tuple[int, str]]:
    if name.endswith(".md"):
        yield from enumerate(text_of(name).splitlines(), 1)
        return
    for first in _first_statements(ast.parse(text_of(name)).body):
        value = first.value if isinstance(first, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from enumerate(value.value.splitlines(), first.lineno)
    for number, line in enumerate(text_of(name).splitlines(), 1):
        comment = COMMENT.search(line)
        if comment is not None:
            yield number, comment[0]


def _first_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The first statement of a module, and of every class and function in it."""
    if body:
        yield body[0]
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _first_statements(statement.body)


@cache
def anchors_of(name: str) -> frozenset[str]:
    """The names by which a page's headings are linked to, as GitHub makes them."""
    made = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", text_of(name)):
        made.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return frozenset(made)


@cache
def by_name() -> dict[str, list[str]]:
    """The files of each bare name."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in files():
        found[Path(name).name].append(name)
    return found


def resolved(path: str, name: str) -> str | None:
    """The file of the repository that `path` means when the file `name` says it.

    It is searched from the file's folder, or one folder further in, then from the folder above, and so on; at last it
    is the one file that ends so."""
    path = path.removeprefix("./").removeprefix("rewindmq/")
    same = [known for known in by_name().get(Path(path).name, []) if known == path or known.endswith(f"/{path}")]
    for folder in Path(name).parents:
        whole = os.path.normpath(folder / path)
        if whole in by_name().get(Path(path).name, []):
            return whole
        inner = [known for known in same if re.fullmatch(rf"{re.escape(f'{folder}/')}[^/]+/{re.escape(path)}", known)]
        if inner:
            return inner[0]
    return same[0] if len(same) == 1 else None


def lost_files() -> Iterator[str]:
    for name in (*sources(), *documents()):
        made = {*FOREIGN, *MADE_HERE.findall(text_of(name))}
        for line, text in prose_of(name):
            for found in FILE.finditer(text):
                path, anchor = found[1], found[2]
                if path in made:
                    continue
                target = resolved(path, name)
                if target is None:
                    yield f"{name}:{line}: no file, or more than one, is {path}"
                elif anchor and anchor[1:] not in anchors_of(target):
                    yield f"{name}:{line}: {path} has no heading {anchor}"


@cache
def folders() -> frozenset[str]:
    return frozenset(folder.as_posix() for name in files() for folder in Path(name).parents)


def lost_folders() -> Iterator[str]:
    for name in (*sources(), *documents()):
        for line, text in prose_of(name):
            for path in FOLDER.findall(text):
                if path not in folders() and not path.endswith(MADE):
                    yield f"{name}:{line}: there is no folder {path}"


def lost_links() -> Iterator[str]:
    for name in documents():
        for line, text in enumerate(text_of(name).splitlines(), 1):
            for target in LINK.findall(text):
                if "://" in target or target.startswith("mailto:"):
                    continue
                path, _, anchor = target.partition("#")
                whole = (ROOT / name).parent / path if path else ROOT / name
                if not whole.exists():
                    yield f"{name}:{line}: no file {path}"
                elif anchor and anchor not in anchors_of(os.path.relpath(whole.resolve(), ROOT)):
                    yield f"{name}:{line}: {path or name} has no heading #{anchor}"


def lost_modules() -> Iterator[str]:
    """Dotted names in prose and in examples of the docs."""
    for name in (*sources(), *documents()):
        for line, text in prose_of(name):
            for dotted in MODULE.findall(text):
                if not _is_there(dotted.split(".")[1:]):
                    yield f"{name}:{line}: there is no {dotted}"


def _is_there(parts: list[str]) -> bool:
    folder = ROOT
    for place, part in enumerate(parts):
        file = folder / f"{part}.py"
        if file.is_file():
            rest = parts[place + 1 :]
            return not rest or re.search(rf"\b{rest[0]}\b", file.read_text()) is not None
        if not (folder / part).is_dir():
            inside = folder / "__init__.py"
            return inside.is_file() and re.search(rf"\b{part}\b", inside.read_text()) is not None
        folder = folder / part
    return True


def moved() -> dict[str, dict[str, str]]:
    """The dead paths in each file, and the present place of the one file of that name."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in (*sources(), *documents()):
        for _, text in prose_of(name):
            for path in (match[1] for match in FILE.finditer(text)):
                same = [known for known in files() if Path(known).name == Path(path).name]
                if "/" in path and path not in FOREIGN and resolved(path, name) is None and len(same) == 1:
                    found[name][path] = same[0]
            for path in FOLDER.findall(text):
                same = [known for known in folders() if known.startswith(path.split("/")[0] + "/")]
                same = [known for known in same if known.endswith("/" + path.split("/", 1)[1])]
                if path not in folders() and len(same) == 1:
                    found[name][path] = same[0]
    return found


CHECKS = (
    unknown_numbers,
    without_number,
    without_test,
    documents_outside,
    lost_files,
    lost_folders,
    lost_links,
    lost_modules,
)


def forget() -> None:
    """Read all files anew: some were written."""
    text_of.cache_clear()
    prose_of.cache_clear()
    anchors_of.cache_clear()
    behaviours.cache_clear()
    holders.cache_clear()


def main() -> int:
    if "--write" in sys.argv[1:]:
        for name, paths in moved().items():
            text = text_of(name)
            for old, new in sorted(paths.items(), key=lambda pair: -len(pair[0])):  # files before their folders
                text = text.replace(old, new)
            (ROOT / name).write_text(text)
        forget()
        give_numbers()
        forget()
        for page in pages():
            (ROOT / page).write_text(rewritten(page))
        forget()
    lost = [line for check in CHECKS for line in check()]
    print("\n".join(lost))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
