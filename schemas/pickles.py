"""The pickled form of values: their class, and the values of its fields.

Processes beside the broker exchange events and values by pickle (engine/rewind/worker.py). An object of a compiled
class cannot be filled in afterwards, so the class is called with the fields. The pure build also reads such a pickle.
"""

import copyreg
from dataclasses import fields
from typing import Any


def pickle_by_fields(*classes: type) -> None:
    """Register this form for objects of these dataclasses. Each takes its fields in their order."""
    for cls in classes:
        copyreg.pickle(cls, _reduced)


def _reduced(value: Any) -> tuple[type, tuple[Any, ...]]:
    return type(value), tuple(getattr(value, field.name) for field in fields(value))
