"""A time means the same in every command, with a minus sign and without."""

from collections.abc import Iterator

import click
import pytest

from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.main import rewindmq
from rewindmq.engine.cli.times import A_MOMENT, A_TIME, moment_from, time_from
from rewindmq.projections.rewind import parse_time


@pytest.mark.parametrize("text", ["2h", "1h30m", "0s"])
def test_how_long_ago_with_a_sign_and_without(text: str) -> None:
    for read in (time_from, moment_from):
        plain, signed = (parse_time(read(each)) for each in (text, f"-{text}"))
        assert 0 <= signed - plain < 5_000


def test_a_mark_is_a_moment_and_no_time() -> None:
    assert moment_from("mark:release") == "mark:release"
    for read, text in ((time_from, "mark:release"), (moment_from, "yesterday")):
        with pytest.raises(CliError, match="is not a time") as refused:
            read(text)
        assert refused.value.code == USAGE


def options_for_times() -> Iterator[tuple[str, click.Option]]:
    for name, command in commands_of(rewindmq).items():
        for option in command.params:
            if isinstance(option, click.Option) and "TIME" in (option.metavar or ""):
                yield name, option


def test_all_options_for_times_say_the_same() -> None:
    found = list(options_for_times())
    assert {"find", "spans", "history", "diff", "what_if", "rewind", "restore", "events", "trim", "recover"} == {
        name for name, _ in found
    }
    for name, option in found:
        text = option.help or ""
        assert A_TIME in text or A_MOMENT in text or "as --" in text, f"{name} {option.opts}"
