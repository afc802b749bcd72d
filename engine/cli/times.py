"""Times on the command line: `2h` and `-2h` mean two hours ago, in every command.

`projections/rewind.py` reads them. A command passes an absolute time on, so all readers of an option see the same one.
"""

from typing import Final

import click

from rewindmq.engine.cli.exits import USAGE, CliError

A_TIME: Final = "how long ago (2h, 3d, 1h30m), or ISO 8601 with a zone"
A_MOMENT: Final = "how long ago (2h, 3d, 1h30m), ISO 8601 with a zone, or mark:NAME"


def time_from(text: str) -> str:
    """Return an absolute time, for the API. CliError."""
    from rewindmq.projections.rewind import UnreadableTime, absolute, parse_time

    try:
        time = absolute(text)
        parse_time(time)
    except UnreadableTime as error:
        raise CliError(USAGE, str(error)) from None
    return time


def moment_from(text: str) -> str:
    """Return an absolute time or a mark, for the API. CliError."""
    from rewindmq.projections.marks import name_in

    return text if name_in(text) else time_from(text)


class Time(click.ParamType[str]):
    """An option that is a time, made absolute. `marks`: or a mark."""

    def __init__(self, marks: bool) -> None:
        self.name = "moment" if marks else "time"
        self._read = moment_from if marks else time_from

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return self._read(value)


TIME, MOMENT = Time(marks=False), Time(marks=True)
