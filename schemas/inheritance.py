"""A decorator that tells mypyc about a class's subclasses, which works without mypy's own package.

    @mypyc_attr(allow_interpreted_subclasses=True)     # an uncompiled class may inherit from this one
    class Projector: ...

Compiled code calls the methods of such a class through a table, which the subclass may fill. Otherwise a call goes
to the compiled method, and an uncompiled class cannot inherit.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    T = TypeVar("T")

    def mypyc_attr(**_: bool) -> Callable[[T], T]:
        """Return the class unchanged."""
        return lambda cls: cls
