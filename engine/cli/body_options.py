"""The options of `start` that encrypt bodies: for subjects, and for so many days."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.runtime.durations import UNIT_MS, duration_ms


def checked_header(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """A callback for click that refuses an impossible --subject-header."""
    from rewindmq.engine.erasure.encryption import why_no_subject_header

    reason = why_no_subject_header(name) if name else None
    if reason is not None:
        raise click.BadParameter(reason)
    return name


def whole_days(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """A callback for click that parses a number of whole days."""
    if text is None:
        return None
    try:
        days, rest = divmod(duration_ms(text), UNIT_MS["d"])
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if rest or not days:
        raise click.BadParameter(f"'{text}' is no number of whole days, such as 30d")
    return days


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--subject-header",
        metavar="NAME",
        default="",
        callback=checked_header,
        help="A header that names a subject. Bodies are encrypted under the subject's key, and can be erased.",
    ),
    click.option(
        "--keep-bodies",
        metavar="DAYS",
        callback=whole_days,
        help="Such as 30d: bodies are encrypted under a key of their day, which is destroyed after so many days.",
    ),
    click.option(
        "--keys",
        type=click.Path(file_okay=False, path_type=Path),
        help="Directory of the keys of bodies (default: keys in the data directory); nodes on one Kafka share it.",
    ),
)


def with_bodies(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds these options. The command gets them under the names that `Config` has."""

    @functools.wraps(command)
    def with_one(*arguments: Any, keep_bodies: int | None, keys: Path | None, **options: Any) -> Any:
        directory = None if keys is None else keys.absolute()
        return command(*arguments, keep_bodies_days=keep_bodies, keys=directory, **options)

    for option in reversed(OPTIONS):
        with_one = option(with_one)
    return with_one
