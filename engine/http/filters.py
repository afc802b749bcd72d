"""Regular expressions in requests, which choose queues or rows by name.

A name takes a few milliseconds at the most (projections/rules/patterns.py), and all names of a request
`FILTER_SECONDS`. A loop over names gives way to other work in between.
"""

import time

from rewindmq.engine.http.call import bad_request
from rewindmq.projections.rules.patterns import BadPattern, Pattern, TooManySteps, shown

FILTER_SECONDS = 2.0  # for matching alone


class NameFilter:
    """The expression of one request. Raises ApiError (400) if it is not an expression, or takes too long."""

    def __init__(self, pattern: str, ignore_case: bool = False) -> None:
        self.shown = f"regular expression {shown(pattern)}"
        self.left = FILTER_SECONDS
        try:
            self.pattern = Pattern(pattern, ignore_case)
        except BadPattern as error:
            raise bad_request(f"not a {self.shown}: {error}") from None

    def fits(self, name: str) -> bool:
        """Return True if the expression is found in the name. Raises ApiError (400) if the search takes too long."""
        began = time.perf_counter()
        try:
            found = self.pattern.search(name)
        except TooManySteps:
            raise bad_request(f"{self.shown} takes too many steps on {shown(name)}") from None
        self.left -= time.perf_counter() - began
        if self.left < 0:
            raise bad_request(f"{self.shown} takes too long on all these names")
        return found
