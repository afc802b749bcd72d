"""A line on stderr that says how far a long question is: at a terminal only, and gone at its end."""

import sys
import time
from types import TracebackType

WIDTH = 30
FIRST_SECONDS = 1.0  # a question that takes less shows nothing
_CLEAR = "\r\x1b[K"  # to the beginning of the line, which is wiped


class ProgressLine:
    """The line, as a context. `what`: the first words."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._shown = False

    def show(self, done: int, left: int, more: str) -> None:
        """Show that `done` of `done + left` are done. `more`: the last words."""
        seconds = time.monotonic() - self._begun
        if not self._terminal or seconds < FIRST_SECONDS:
            return
        part = done / (done + left) if done + left else 1.0
        bar = "#" * int(part * WIDTH)
        sys.stderr.write(f"{_CLEAR}{self.what} [{bar:<{WIDTH}}] {part:4.0%}, {seconds:.0f} s, {more}")
        sys.stderr.flush()
        self._shown = True

    def note(self, text: str) -> None:
        """Show a line that stays."""
        if self._terminal:
            sys.stderr.write(f"{_CLEAR if self._shown else ''}{text}\n")
            self._shown = False

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
