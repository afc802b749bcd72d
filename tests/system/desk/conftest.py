"""A browser, and a page of it."""

from tests.support.browser import browser, faults, page

__all__ = ["browser", "faults", "page"]
