"""Exit codes of sysexits.h, as rabbitmqctl's, and the error that each command raises.

An error is one line on stderr that says what to do (docs/behaviours/interfaces.md#command-line).
"""

OK = 0
DIFFERENT = 1  # verify and similar commands: they compared two things, which differ
USAGE = 64
DATA = 65
NO_USER = 67
UNAVAILABLE = 69
SOFTWARE = 70
TIMEOUT = 75
NO_PERMISSION = 77
CONFIG = 78


class CliError(Exception):
    """`code` is the exit code. Line breaks in the text (RabbitMQ's validation texts have some) become `; `."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def line(self) -> str:
        """The error as one line."""
        lines = [line.strip() for line in str(self).splitlines() if line.strip()]
        if len(lines) > 1 and not lines[0].endswith((":", ".")):
            return f"{lines[0]}: {'; '.join(lines[1:])}"
        return " ".join(lines)
