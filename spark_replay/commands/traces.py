"""The command that sends traces to a tracing system: spans."""

import click

from rewindmq.engine.keeping.location import Location
from rewindmq.spark_replay.commands.location_options import with_location
from rewindmq.spark_replay.commands.options import moment_option, queue_option, start_spark, tell_beginnings
from rewindmq.spark_replay.location.ranges import BadRequest


@click.command()
@with_location
@moment_option("--since", help="Published from this time on (ISO 8601, or 2h: two hours ago) or mark:NAME.")
@moment_option("--until", help="Published up to this time, inclusive, or mark:NAME.")
@queue_option
@click.option("--otlp", required=True, metavar="URL", help="The collector's address, such as http://localhost:4318.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header for the collector.")
def spans(
    location: Location, since: str | None, until: str | None, queue: str | None, otlp: str, headers: tuple[str, ...]
) -> None:
    """Send spans of messages with a header traceparent to an OpenTelemetry collector.

    The spans are those of `rewindmq spans`, with the same ids, over any part of the history."""
    from rewindmq.projections.traces.otlp import BadCollector, Collector, SpansRefused
    from rewindmq.spark_replay.history.spans import export_spans

    pairs = [header.partition("=") for header in headers]
    for name, separator, _ in pairs:
        if not separator or not name:
            raise BadRequest(f"--header is NAME=VALUE, not {name!r}")
    said = {name: value for name, _, value in pairs}
    try:
        Collector(otlp, said).close()
    except BadCollector as error:
        raise BadRequest(str(error)) from None
    tell_beginnings(location, since)
    [row] = export_spans(start_spark(location), location, otlp, said, since, until, queue).collect()
    if row.waiting:
        click.echo(f"messages that still wait, without a span of their stay: {row.waiting}", err=True)
    if row.rejected:
        raise SpansRefused(f"the collector took {row.sent} spans and rejected {row.rejected}: {row.reason}")
    click.echo(f"{row.sent} spans were sent to {otlp}")
