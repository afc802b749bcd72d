"""How values are pickled: their class, and what it is made of.

Processes beside the broker send events and values by pickle (engine/rewind/worker.py). An object of a compiled class is
not filled in after it was made, so the class is called with the fields. The pure build reads such a pickle, too.
"""

import copyreg
from dataclasses import fields
from typing import Any


def pickle_by_fields(*classes: type) -> None:
    """Have objects of these dataclasses pickled so. Each takes its fields in their order."""
    for cls in classes:
        copyreg.pickle(cls, _reduced)


def _reduced(value: Any) -> tuple[type, tuple[Any, ...]]:
    return type(value), tuple(getattr(value, field.name) for field in fields(value))
