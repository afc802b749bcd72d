"""The decorator by which a class tells mypyc about its subclasses. It runs without mypy's own package.

    @mypyc_attr(allow_interpreted_subclasses=True)     # a class that is not compiled may inherit from this one
    class Projector: ...

Compiled code calls the methods of such a class through a table, which the subclass may fill. Without this a call goes
to the compiled method, and a class that is not compiled cannot inherit.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    T = TypeVar("T")

    def mypyc_attr(**_: bool) -> Callable[[T], T]:
        """Give the class back as it is."""
        return lambda cls: cls
