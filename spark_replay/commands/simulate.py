"""The commands that try changes on a history and bring messages back: what-if, restore."""

import sys
from pathlib import Path

import click

from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.secret_file import BadSecret, secret_in
from rewindmq.spark_replay.commands.location_options import with_location
from rewindmq.spark_replay.commands.options import (
    Out,
    format_option,
    moment_option,
    out_option,
    queue_option,
    require_out,
    start_spark,
    without_option,
)
from rewindmq.spark_replay.location.ranges import BadRequest


@click.command("what-if")
@with_location
@click.option(
    "--candidate",
    "texts",
    multiple=True,
    help='A change to try: {"name": .., "pattern": "^q$", "definition": {..}, "arguments": {..}, "semantics": ..}.'
    " May be given again.",
)
@without_option
@moment_option(
    "--from", "start", help="The candidates' definitions hold from this time on (default: from the beginning)."
)
@moment_option("--to", "end", help="End at this time, inclusive, or at mark:NAME.")
@click.option(
    "--show", default="summary", type=click.Choice(["summary", "fates", "depth", "assumptions"]), show_default=True
)
@click.option("--every", default=60.0, type=click.FloatRange(0.001), show_default=True, help="Seconds between depths.")
@format_option
@out_option
def what_if(
    location: Location,
    texts: tuple[str, ...],
    left_out: tuple[str, ...],
    start: str | None,
    end: str | None,
    show: str,
    every: float,
    form: str,
    out: Out | None,
) -> None:
    """Show which messages would have ended differently under another policy, argument or profile, or without events."""
    from rewindmq.spark_replay.commands.table_writer import write_frame
    from rewindmq.spark_replay.location.marks import plan_ranges
    from rewindmq.spark_replay.what_if.candidates import candidate_without, check, parse_candidate
    from rewindmq.spark_replay.what_if.exclusion import resolved
    from rewindmq.spark_replay.what_if.what_if import what_if as what_if_of

    require_out(form, out)
    candidates = [parse_candidate(text) for text in texts] + ([candidate_without(left_out)] if left_out else [])
    every_ms = max(1, round(every * 1000))
    check(candidates, start, every_ms)
    resolved(location, [rule for each in candidates if each.without for rule in each.without.rules])
    plan_ranges(location, start, end)
    tried = what_if_of(start_spark(location), location, candidates, start, end, every_ms)
    write_frame(getattr(tried, show), form, out)


def _password_in(file: Path | None) -> str:
    """Return the password in a file. BadRequest."""
    try:
        return "guest" if file is None else secret_in(file)
    except BadSecret as error:
        raise BadRequest(f"--password-file: {error}") from None


@click.command()
@with_location
@queue_option
@without_option
@moment_option("--time", help="With --without: the moment (or mark:NAME) of the queue to put back (default: now).")
@click.option(
    "--where", "condition", help="A condition in SQL that chooses rows of the history: \"outcome = 'expired'\"."
)
@click.option(
    "--url", default="http://127.0.0.1:15672", show_default=True, help="The URL of the broker's management API."
)
@click.option("--user", default="guest", show_default=True)
@click.option("--password", envvar="REWINDMQ_PASSWORD", help="The password (default: REWINDMQ_PASSWORD, or guest).")
@click.option(
    "--password-file",
    envvar="REWINDMQ_PASSWORD_FILE",
    type=click.Path(path_type=Path),
    help="File with the password: other users of the machine see --password.",
)
@click.option(
    "--to", help="Put the messages into this queue of the same vhost (default: into the queue that they were in)."
)
@click.option("--name", help="The name of the restoration. Under one name each message comes back once.")
@click.option("--dry-run", is_flag=True, help="Only count the messages that would come back.")
def restore(
    location: Location,
    queue: str | None,
    left_out: tuple[str, ...],
    time: str | None,
    condition: str | None,
    url: str,
    user: str,
    password: str | None,
    password_file: Path | None,
    to: str | None,
    name: str | None,
    dry_run: bool,
) -> None:
    """Let a running broker bring back the messages that --where finds in the history.

    With --without the broker puts into another queue what would be in this one if some events had not happened."""
    from rewindmq.spark_replay.commands.table_writer import discard_output, print_json, tell_unknown
    from rewindmq.spark_replay.location.marks import plan_ranges
    from rewindmq.spark_replay.restore import Broker, bring_back, check_broker, find, without
    from rewindmq.spark_replay.what_if.exclusion import parse_rule, resolved

    if (condition is None) == (not left_out) or (time is not None and not left_out):
        raise BadRequest("give --where, or --without; --time needs --without")
    rules = [parse_rule(text) for text in left_out]
    if rules and (queue is None or to is None or to == queue):
        raise BadRequest("--without: name the queue with --queue, and another queue to put the messages into with --to")
    resolved(location, rules)
    plan_ranges(location, None, time)
    broker = Broker(url, user, password or _password_in(password_file))
    check_broker(broker)
    if condition is not None:
        found = find(start_spark(location), location, condition, queue)
    else:
        assert queue is not None
        found = without(start_spark(location), location, left_out, queue, time)
        name = name or f"{queue} without {', '.join(left_out)}"
    tell_unknown(queue, len(found))
    done = bring_back(found, broker, to, name, dry_run)
    try:
        print_json(done, sys.stdout)
    except BrokenPipeError:  # the broker brings the messages back all the same
        discard_output()
        list(done)
