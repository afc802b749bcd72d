"""The types of a class's fields as its source says them.

A compiled class knows less: its `__annotations__` say `tuple` for `tuple[str, ...]`, and `type` for `int | None`.
"""

import ast
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def annotations_of(cls: type) -> dict[str, Any]:
    """The type of each field, by name, in their order."""
    source = ROOT.joinpath(*cls.__module__.split(".")).with_suffix(".py").read_text()
    [body] = [
        node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    ]
    names = vars(sys.modules[cls.__module__])
    return {
        ast.unparse(node.target): eval(ast.unparse(node.annotation), names)
        for node in body
        if isinstance(node, ast.AnnAssign)
    }
