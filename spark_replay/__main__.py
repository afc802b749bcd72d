"""`python -m spark_replay`: state-at, history, biography, diff, slo, what-if, restore, audit, verify, cut and watch.

Only the result is on stdout. Exit status: 0 done; 1 an audit found something; 64 a wrong argument; 65 the data cannot
be used (a corrupt log, a newer version's, a time outside the history); 69 Spark does not start; 70 a defect of ours. An
error is one line on stderr.
The checks that need no Spark come before Spark is started, so that a typo costs no seconds.
"""

import functools
import signal
import sys
from json import dumps
from pathlib import Path
from typing import Any

import click

from engine.log.base import CorruptLog, LogError
from projections.machine.machine import NewerHistory
from projections.rewind import OutsideHistory, RewindError, UnreadableTime
from spark_replay import lineage
from spark_replay.history_log import InKafka, Place
from spark_replay.place_options import with_place, with_topics
from spark_replay.ranges import BadRequest

EX_USAGE, EX_DATAERR, EX_UNAVAILABLE, EX_SOFTWARE = 64, 65, 69, 70

_queue = click.option("--queue", help="Only this queue: vhost/name, or a name in the vhost /.")
_format = click.option(
    "--format", "form", default="table", show_default=True,
    type=click.Choice(["table", "json", "csv", "parquet", "delta"]),
)  # fmt: skip
_out = click.option(
    "--out", type=click.Path(path_type=Path), help="A directory to write to (parquet and delta need one)."
)


_without = click.option(
    "--without", "left_out", multiple=True,
    help="As if it had not been: message=queues-0:123, user=eve, session=7, from=TIME, to=TIME; with commas: all of"
    " them at once. May be given again.",
)  # fmt: skip
_snapshots = click.option(
    "--snapshots", type=click.Path(path_type=Path),
    help="Snapshots to begin from (of `cut`, or a node's), and not those beside the log.",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Rebuild, follow and audit queues from their history."""


@main.command("state-at")
@with_place
@click.option("--time", help="ISO 8601 or epoch milliseconds; everything logged up to it has happened.")
@click.option("--offsets", help='Instead of a time: {"queues-0": 12}, the events below have happened.')
@click.option("--mark", help="Instead of a time: a moment that was given this name (rewindmq set_mark).")
@_queue
@_snapshots
@click.option("--messages", is_flag=True, help="Add the messages of each queue, in order.")
@click.option("--format", "form", default="json", type=click.Choice(["json", "table"]), show_default=True)
def state_at(
    place: Place, time: str | None, offsets: str | None, mark: str | None, queue: str | None, snapshots: Path | None,
    messages: bool, form: str,
) -> None:  # fmt: skip
    """The queues as they stood at a time, at offsets or at a mark (none of them: now)."""
    from spark_replay.output import print_state
    from spark_replay.state import plan_state, state_frame

    if mark is not None and (time is not None or offsets is not None):
        raise BadRequest("give one of --time, --offsets and --mark")
    plan = plan_state(place, time if mark is None else f"mark:{mark}", offsets, snapshots)
    print_state(state_frame(_spark(place), plan, queue, messages), messages, form)


@main.command()
@with_place
@click.option("--from", "start", help="From this time, or mark:NAME, on.")
@click.option("--to", "end", help="Up to and including this time, or up to mark:NAME.")
@_queue
@_snapshots
@_format
@_out
def history(
    place: Place, start: str | None, end: str | None, queue: str | None, snapshots: Path | None, form: str,
    out: Path | None,
) -> None:  # fmt: skip
    """What came of every event: one row an outcome."""
    from spark_replay.history import history_frame, plan_history
    from spark_replay.output import write_frame

    _needs_out(form, out)
    options = {"startingTimestamp": start, "endingTimestamp": end}
    stretches = plan_history(place, {name: value for name, value in options.items() if value is not None}, snapshots)
    write_frame(history_frame(_spark(place), place, stretches, queue, snapshots), form, out)


@main.command("keep-history")
@with_place
@_queue
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="A directory of its own.")
@click.option("--format", "form", default="parquet", type=click.Choice(["parquet", "delta"]), show_default=True)
def keep_history(place: Place, queue: str | None, out: Path, form: str) -> None:
    """Add what is new since the last run to a history that is kept in files, or as a Delta table."""
    from dataclasses import asdict

    from spark_replay.kept_history import keep_history as keep
    from spark_replay.kept_history import read_progress

    read_progress(out, queue, form)
    click.echo(dumps(asdict(keep(_spark(place), place, out, queue, form))))


@main.command()
@with_place
@click.option("--message", required=True, help="partition:offset of its publish, such as queues-0:123.")
@_queue
@_format
@_out
def biography(place: Place, message: str, queue: str | None, form: str, out: Path | None) -> None:
    """What happened to one message, and to the dead letters that came of it."""
    from spark_replay.history import biography as biography_of
    from spark_replay.history import parse_message
    from spark_replay.output import write_frame

    _needs_out(form, out)
    parse_message(message)
    write_frame(biography_of(_spark(place), place, message, queue), form, out)


@main.command()
@with_place
@click.option(
    "--from", "start", required=True, help='The first moment: a time, mark:NAME, or offsets such as {"queues-0": 12}.'
)
@click.option("--to", "end", help="The second one; now, if it is not given.")
@click.option("--summary", is_flag=True, help="Only the sums, by queue and outcome.")
@_queue
@_format
@_out
def diff(
    place: Place, start: str, end: str | None, summary: bool, queue: str | None, form: str, out: Path | None
) -> None:
    """What came into the queues and what left them between two moments, and why."""
    from spark_replay.diff import diff_frame, plan_moment, stretches_between
    from spark_replay.output import write_frame

    _needs_out(form, out)
    moments = plan_moment(place, start, future=False), plan_moment(place, end)
    stretches_between(*moments)
    frame = diff_frame(_spark(place), *moments, queue)
    if summary:
        from pyspark.sql import functions as f

        keys = ("vhost", "queue", "outcome", "rule", "user")
        frame = frame.groupBy(*keys).agg(f.sum("change").alias("change")).orderBy(*keys)
    write_frame(frame, form, out)


@main.command()
@with_place
@click.option("--from", "start", help="From this time, or mark:NAME, on.")
@click.option("--to", "end", help="Up to and including this time, or up to mark:NAME.")
@click.option("--by", default="queue", type=click.Choice(["queue", "consumer"]), show_default=True)
@click.option("--every", help="A row for each stretch of this length: 5 minutes, 1 hour.")
@_queue
@_format
@_out
def slo(
    place: Place, start: str | None, end: str | None, by: str, every: str | None, queue: str | None, form: str,
    out: Path | None,
) -> None:  # fmt: skip
    """How long messages waited for their first delivery and stayed in their queue, and how many came back."""
    from spark_replay.output import write_frame
    from spark_replay.slo import check
    from spark_replay.slo import slo as slo_of

    _needs_out(form, out)
    check(by, every)
    write_frame(slo_of(_spark(place), place, start, end, queue, by, every), form, out)


@main.command("what-if")
@with_place
@click.option(
    "--candidate", "texts", multiple=True,
    help='{"name": .., "pattern": "^q$", "definition": {..}, "arguments": {..}, "semantics": ..}; may be given again.',
)  # fmt: skip
@_without
@click.option("--from", "start", help="The candidates' definitions hold from this time on; else from the beginning.")
@click.option("--to", "end", help="Up to and including this time, or up to mark:NAME.")
@click.option(
    "--show", default="summary", type=click.Choice(["summary", "fates", "depth", "assumptions"]), show_default=True
)
@click.option("--every", default=60.0, type=click.FloatRange(0.001), show_default=True, help="Seconds between depths.")
@_format
@_out
def what_if(
    place: Place, texts: tuple[str, ...], left_out: tuple[str, ...], start: str | None, end: str | None, show: str,
    every: float, form: str, out: Path | None,
) -> None:  # fmt: skip
    """Which messages would have ended otherwise under another policy, argument or profile, or without something."""
    from spark_replay.candidates import candidate_without, check, parse_candidate
    from spark_replay.output import write_frame
    from spark_replay.what_if import what_if as what_if_of
    from spark_replay.without import require_messages

    _needs_out(form, out)
    candidates = [parse_candidate(text) for text in texts] + ([candidate_without(left_out)] if left_out else [])
    every_ms = max(1, round(every * 1000))
    check(candidates, start, every_ms)
    require_messages(place, [rule for each in candidates if each.without for rule in each.without.rules])
    tried = what_if_of(_spark(place), place, candidates, start, end, every_ms)
    write_frame(getattr(tried, show), form, out)


@main.command()
@with_place
@_queue
@_without
@click.option("--time", help="With --without: as it would have been then (or mark:NAME); now, if it is not given.")
@click.option("--where", "condition", help="Which rows of the history, in SQL: \"outcome = 'expired'\".")
@click.option("--url", default="http://127.0.0.1:15672", show_default=True, help="Of a broker's management API.")
@click.option("--user", default="guest", show_default=True)
@click.option("--password", default="guest", envvar="REWINDMQ_PASSWORD", help="Or in REWINDMQ_PASSWORD.")
@click.option("--to", help="Into this queue of the same vhost, instead of back into their own.")
@click.option("--name", help="Each message comes back once under a name.")
@click.option("--dry-run", is_flag=True, help="Only say what would come back.")
def restore(
    place: Place, queue: str | None, left_out: tuple[str, ...], time: str | None, condition: str | None, url: str,
    user: str, password: str, to: str | None, name: str | None, dry_run: bool,
) -> None:  # fmt: skip
    """Let a running broker bring back the messages that rows of the history are about; or put a queue as it would be
    --without something into another one."""
    from spark_replay.bring_back import Broker, bring_back, check_broker, find, without
    from spark_replay.output import print_json
    from spark_replay.without import parse_rule, require_messages

    if (condition is None) == (not left_out) or (time is not None and not left_out):
        raise BadRequest("give --where, or --without (and --time, if you like)")
    rules = [parse_rule(text) for text in left_out]
    if rules and (queue is None or to is None or to == queue):
        raise BadRequest("--without: say of which --queue, and into which other queue with --to")
    require_messages(place, rules)
    broker = Broker(url, user, password)
    check_broker(broker)
    if condition is not None:
        found = find(_spark(place), place, condition, queue)
    else:
        assert queue is not None
        found = without(_spark(place), place, left_out, queue, time)
        name = name or f"{queue} without {', '.join(left_out)}"
    print_json(bring_back(found, broker, to, name, dry_run), sys.stdout)


@main.command()
@with_place
@click.option("--format", "form", default="table", type=click.Choice(["table", "json"]), show_default=True)
@click.option("--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write a page to hand on, too.")
@click.option("--public-key", "public_keys", multiple=True, type=click.Path(path_type=Path),
              help="Of who seals the log, PEM: its seals must be there, and signed with it. May be given again.")
@click.option("--copies", type=click.Path(path_type=Path),
              help="Seals that are kept elsewhere, a file or a directory: all must still be there.")
@_snapshots
def audit(
    place: Place, form: str, page: Path | None, public_keys: tuple[Path, ...], copies: Path | None,
    snapshots: Path | None,
) -> int:  # fmt: skip
    """Check the history against itself, its seals and hash chain, the broker's claims and its RocksDB."""
    from engine.log.seals import public_keys as read_keys
    from engine.log.seals import read_copies
    from spark_replay.audit import audit as audit_of
    from spark_replay.audit_seals import check_seals
    from spark_replay.own_snapshots import own_snapshots
    from spark_replay.report import print_report
    from spark_replay.report_html import report_html

    keys, kept = read_keys(public_keys), [] if copies is None else read_copies(copies)
    own_snapshots(place, snapshots)
    findings = check_seals(_spark(place), place, keys or None, kept) + audit_of(_spark(place), place, snapshots)
    print_report(findings, form)
    if page is not None:
        page.write_text(report_html(findings, str(place)), encoding="utf-8")
    if any(finding.corrupt for finding in findings):
        return EX_DATAERR
    return 0 if all(finding.ok for finding in findings) else 1


@main.command()
@with_place
@_snapshots
@click.option("--format", "form", default="table", type=click.Choice(["table", "json"]), show_default=True)
def verify(place: Place, snapshots: Path | None, form: str) -> int:
    """Fold the chunks between snapshots all at once: does each give the next snapshot, and the last one RocksDB?"""
    from spark_replay.chunks import verify as verify_chunks
    from spark_replay.own_snapshots import own_snapshots
    from spark_replay.report import print_report

    own_snapshots(place, snapshots)
    findings = verify_chunks(_spark(place), place, snapshots)
    print_report(findings, form, "verify")
    return 0 if all(finding.ok for finding in findings) else 1


@main.command()
@with_place
@click.option("--every", default=1_000_000, type=click.IntRange(1), show_default=True, help="Events.")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="A directory of its own.")
def cut(place: Place, every: int, out: Path) -> None:
    """Make snapshots of a history that has few or none, or of what came since the last time."""
    from dataclasses import asdict

    from spark_replay.cutting import cut as cut_log
    from spark_replay.cutting import prepare

    prepare(place, every, out)
    click.echo(dumps(asdict(cut_log(_spark(place), place, every, out))))


@main.command("watch")
@with_topics
@click.option(
    "--checkpoint", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="A directory of this watch's own: it goes on from there.",
)  # fmt: skip
@click.option("--interval", default=10.0, type=click.FloatRange(0.1), show_default=True, help="Seconds.")
@click.option("--batch-events", default=1_000_000, type=click.IntRange(1), show_default=True, help="About so many.")
@click.option("--fail-fast", is_flag=True, help="End with status 1 when something is found.")
@click.option("--once", is_flag=True, help="End when all there is now is audited; status 1 if something was found.")
@click.option("--format", "form", default="table", type=click.Choice(["table", "json"]), show_default=True)
def watch_command(
    place: InKafka, checkpoint: Path, interval: float, batch_events: int, fail_fast: bool, once: bool, form: str
) -> int:  # fmt: skip
    """Audit a history in Kafka as it goes on, until SIGTERM or SIGINT; a line for each batch with events."""
    from spark_replay.report import print_batch
    from spark_replay.watch import Watch, watch

    before: dict[int, Any] = {}

    def stop_on_signals(watching: Watch) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda *_: watching.stop())

    try:
        done = watch(
            _spark(place), place, checkpoint, interval, batch_events, fail_fast, once,
            functools.partial(print_batch, form=form), stop_on_signals,
        )  # fmt: skip
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 1 if done.violations and (fail_fast or once) else 0


def _needs_out(form: str, out: Path | None) -> None:
    if form in ("parquet", "delta") and out is None:
        raise BadRequest(f"--format {form}: say where with --out")
    if out is not None and out.exists():
        raise BadRequest(f"--out: {out} exists already")


def _spark(place: Place) -> Any:
    from pyspark.logger import PySparkLogger

    from spark_replay.session import session

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # what they say of an error is said here, in one line
    spark = session(records_in_java=isinstance(place, InKafka))
    lineage.begin(spark)
    return spark


def run(arguments: list[str] | None = None) -> int:
    """The command line as a function: its exit status."""
    try:
        return main.main(args=arguments, prog_name="python -m spark_replay", standalone_mode=False) or 0
    except click.Abort:
        return 130
    except click.ClickException as error:
        return _complain(EX_USAGE, error.format_message())
    except OutsideHistory as error:
        return _complain(EX_DATAERR, str(error))
    except RewindError as error:
        return _complain(EX_USAGE, str(error))
    except (CorruptLog, LogError, NewerHistory) as error:
        return _complain(EX_DATAERR, str(error))
    except Exception as error:
        return _spark_failure(error)


def _spark_failure(error: Exception) -> int:
    """An error in a worker arrives as text: find ours in it."""
    from spark_replay.failures import cause_of

    name, line = cause_of(error)
    if name in ("NoSpark", "Refused"):
        return _complain(EX_UNAVAILABLE, line)
    data_errors = (CorruptLog.__name__, LogError.__name__, OutsideHistory.__name__, NewerHistory.__name__)
    if name in (BadRequest.__name__, UnreadableTime.__name__):
        return _complain(EX_USAGE, line)
    return _complain(EX_DATAERR if name in data_errors else EX_SOFTWARE, line)


def _complain(status: int, line: str) -> int:
    click.echo(f"spark_replay: {line}", err=True)
    return status


if __name__ == "__main__":
    sys.exit(run())
