"""The tree of pages: its branches are the sections of docs/README.md.

A page stands where docs/README.md links it first. Any other page stands below the index of its folder: the README, or
the page beside the folder that has its name. INDEXES has the two that are elsewhere.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FRONT = "README.md"
INDEX = "docs/README.md"
INDEXES = {"ARCHITECTURE.md": "", "docs/auditors.md": "docs/spark/"}  # and their folders
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+\.md)(?:#[^)\s]*)?\)")
PUNCTUATION = re.compile(r"[`*]")


@dataclass
class Page:
    """A page in the tree. `tasks`: what the indexes say that a reader wants to do there, the first one first."""

    name: str
    tasks: list[str]
    children: list["Page"] = field(default_factory=list)

    def walk(self) -> Iterator["Page"]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def title(self) -> str:
        found = re.search(r"(?m)^# (.+)$", (ROOT / self.name).read_text())
        assert found, f"{self.name} has no title"
        return plain(found[1])


@dataclass
class Branch:
    """A section of docs/README.md: a kind of reader."""

    title: str
    pages: list[Page] = field(default_factory=list)

    def walk(self) -> Iterator[Page]:
        for page in self.pages:
            yield from page.walk()


def plain(text: str) -> str:
    """Return Markdown without links and marks."""
    return PUNCTUATION.sub("", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)).strip()


def folder_of(name: str) -> str | None:
    """Return the folder whose pages may stand below an index, "" for any; None for a page that is not an index."""
    folder = name.removesuffix(".md").removesuffix("/README") + "/"
    return INDEXES.get(name, folder if (ROOT / folder).is_dir() else None)


def rows(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield (section, task, page) for each link from an index to another page of the repository, in order."""
    section = ""
    for line in FENCE.sub("", (ROOT / name).read_text()).splitlines():
        if line.startswith("## "):
            section = plain(line.removeprefix("## "))
        cells = line.strip("| ").split(" | ") if line.startswith("|") else []
        for text, target in LINK.findall(line):
            page = os.path.normpath(os.path.join(os.path.dirname(name), target))
            if "://" not in target and (ROOT / page).is_file():
                others = [cell for cell in cells if f"]({target}" not in cell]
                yield section, plain(others[0] if others else text if cells else ""), page


def tree() -> list[Branch]:
    """Return the branches with every page that is reached from docs/README.md, each at one place."""
    branches = list[Branch]()
    placed = {FRONT, INDEX}
    tasks = defaultdict[str, list[str]](list)
    waiting = list[Page]()

    def place(name: str, among: list[Page]) -> None:
        placed.add(name)
        among.append(Page(name, tasks[name]))
        waiting.append(among[-1])

    for section, task, name in (row for row in rows(INDEX) if row[0]):
        tasks[name] += [task] if task else []
        if name not in placed:
            if not branches or branches[-1].title != section:
                branches.append(Branch(section))
            place(name, branches[-1].pages)
    while waiting:
        page = waiting.pop(0)
        folder = folder_of(page.name)
        for _, task, name in rows(page.name) if folder is not None else ():
            tasks[name] += [task] if task else []
            if name not in placed and name.startswith(str(folder)):
                place(name, page.children)
    return branches
