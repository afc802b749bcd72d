"""The options of `start` that archive the history beside the broker."""

import functools
from collections.abc import Callable
from typing import Any

import click

from rewindmq.engine.config import ArchiveConfig
from rewindmq.engine.runtime.durations import UNIT_MS, duration_ms

SEGMENT_AGE_MS = UNIT_MS["h"]  # with --archive
LAG_MS = UNIT_MS["m"]


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration such as `1h`, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def checked_limit(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """A callback for click that refuses an impossible --keep-local."""
    if text:
        from rewindmq.engine.runtime.local_limits import local_limits

        try:
            local_limits(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return text


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--archive",
        "archive_url",
        metavar="URL",
        help="Archive the history beside the broker: s3://BUCKET/PREFIX, gs://..., az://..., or a directory.",
    ),
    click.option(
        "--segment-age",
        type=Duration(),
        metavar="DURATION",
        help="Close segments that are older, so that they can be archived (default with --archive: 1h).",
    ),
    click.option(
        "--archive-lag",
        type=Duration(),
        metavar="DURATION",
        help="How often the archiver looks for closed segments; on Kafka how far it may be behind (default: 1m).",
    ),
    click.option(
        "--keep-local",
        metavar="LIMIT",
        default="",
        callback=checked_limit,
        help="Remove what is archived from here, or from Kafka, beyond an age, a size or both (7d, 50GB, 7d,50GB).",
    ),
)


def with_archive(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds these options. The command gets them as `archive`, and has an argument `kafka`."""

    @functools.wraps(command)
    def with_one(
        *arguments: Any,
        archive_url: str | None,
        segment_age: int | None,
        archive_lag: int | None,
        keep_local: str,
        **options: Any,
    ) -> Any:
        for name, given in (("--archive-lag", archive_lag), ("--keep-local", keep_local)):
            if given and archive_url is None:
                raise click.UsageError(f"{name} needs --archive")
        in_kafka = options["kafka"].servers is not None
        if in_kafka and segment_age is not None:
            raise click.UsageError("--segment-age is for an embedded log: on Kafka --archive-lag says it all")
        if segment_age is None and archive_url is not None and not in_kafka:
            segment_age = SEGMENT_AGE_MS
        config = ArchiveConfig(archive_url, segment_age, archive_lag or LAG_MS, keep_local)
        return command(*arguments, archive=config, **options)

    for option in reversed(OPTIONS):
        with_one = option(with_one)
    return with_one
