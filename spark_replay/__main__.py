"""`python -m spark_replay`: state-at, history, biography, audit and watch from a shell.

Only the result is on stdout. Exit status: 0 done; 1 an audit found something; 64 a wrong argument; 65 the data cannot
be used (a corrupt log, a time outside the history); 69 Spark does not start; 70 a defect of ours. An error is one line
on stderr.
The checks that need no Spark come before Spark is started, so that a typo costs no seconds.
"""

import functools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from engine.log.base import CorruptLog, LogError
from projections.rewind import OutsideHistory, RewindError, UnreadableTime
from spark_replay.history_log import InKafka, Place, open_log
from spark_replay.ranges import BadRequest

EX_USAGE, EX_DATAERR, EX_UNAVAILABLE, EX_SOFTWARE = 64, 65, 69, 70

_PLACE = (
    click.option("--data", type=click.Path(path_type=Path), help="The broker's data directory."),
    click.option("--kafka", help="Instead of it: the log is in this Kafka, host:port (more are comma separated)."),
    click.option("--prefix", default="rewindmq", show_default=True, help="Of the names of its topics."),
)
_queue = click.option("--queue", help="Only this queue: vhost/name, or a name in the vhost /.")
_format = click.option(
    "--format", "form", default="table", type=click.Choice(["table", "json", "csv", "parquet"]), show_default=True
)
_out = click.option("--out", type=click.Path(path_type=Path), help="A directory to write to (parquet needs one).")


def _place(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where the history is; the command gets it as `place`."""

    @functools.wraps(command)
    def with_place(data: Path | None, kafka: str | None, prefix: str, **others: Any) -> Any:
        return command(place=_existing(data, kafka, prefix), **others)

    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_PLACE), with_place)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Rebuild, follow and audit queues from their history."""


@main.command("state-at")
@_place
@click.option("--time", help="ISO 8601 or epoch milliseconds; everything logged up to it has happened.")
@click.option("--offsets", help='Instead of a time: {"queues-0": 12}, the events below have happened.')
@_queue
@click.option("--messages", is_flag=True, help="Add the messages of each queue, in order.")
@click.option("--format", "form", default="json", type=click.Choice(["json", "table"]), show_default=True)
def state_at(
    place: Place, time: str | None, offsets: str | None, queue: str | None, messages: bool, form: str
) -> None:
    """The queues as they stood at a time or at offsets (neither: now)."""
    from spark_replay.output import print_state
    from spark_replay.state import plan_state, state_frame

    plan = plan_state(place, time, offsets)
    print_state(state_frame(_spark(place), plan, queue, messages), messages, form)


@main.command()
@_place
@click.option("--from", "start", help="From this time on.")
@click.option("--to", "end", help="Up to and including this time.")
@_queue
@_format
@_out
def history(
    place: Place, start: str | None, end: str | None, queue: str | None, form: str, out: Path | None
) -> None:
    """What came of every event: one row an outcome."""
    from spark_replay.history import history_frame, plan_history
    from spark_replay.output import write_frame

    _needs_out(form, out)
    options = {"startingTimestamp": start, "endingTimestamp": end}
    stretches = plan_history(place, {name: value for name, value in options.items() if value is not None})
    write_frame(history_frame(_spark(place), place, stretches, queue), form, out)


@main.command()
@_place
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
@_place
@click.option("--format", "form", default="table", type=click.Choice(["table", "json"]), show_default=True)
def audit(place: Place, form: str) -> int:
    """Check the history against itself, the log's hash chain, the broker's claims and its RocksDB."""
    from spark_replay.audit import audit as audit_of
    from spark_replay.report import print_report

    findings = audit_of(_spark(place), place)
    print_report(findings, form)
    if any(finding.corrupt for finding in findings):
        return EX_DATAERR
    return 0 if all(finding.ok for finding in findings) else 1


@main.command("watch")
@click.option("--kafka", required=True, help="The Kafka that the log is in, host:port (more are comma separated).")
@click.option("--prefix", default="rewindmq", show_default=True, help="Of the names of its topics.")
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
    kafka: str, prefix: str, checkpoint: Path, interval: float, batch_events: int, fail_fast: bool, once: bool,
    form: str,
) -> int:  # fmt: skip
    """Audit a history in Kafka as it goes on, until SIGTERM or SIGINT; a line for each batch with events."""
    from spark_replay.report import print_batch
    from spark_replay.watch import Watch, watch

    place = _existing(None, kafka, prefix)
    assert isinstance(place, InKafka)

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


def _existing(data: Path | None, kafka: str | None, prefix: str) -> Place:
    """A directory as an absolute path, which workers may be given, or topics. BadRequest, or LogError when there is no
    log."""
    if (data is None) == (kafka is None):
        raise BadRequest("where is the history: --data, or --kafka?")
    if data is not None and not data.is_dir():
        raise BadRequest(f"{data}: no such directory")
    place: Place = str(data.resolve()) if data is not None else InKafka(kafka or "", prefix)
    open_log(place)
    return place


def _needs_out(form: str, out: Path | None) -> None:
    if form == "parquet" and out is None:
        raise BadRequest("--format parquet: say where with --out")
    if out is not None and out.exists():
        raise BadRequest(f"--out: {out} exists already")


def _spark(place: Place) -> Any:
    from spark_replay.session import session

    return session(records_in_java=isinstance(place, InKafka))


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
    except (CorruptLog, LogError) as error:
        return _complain(EX_DATAERR, str(error))
    except Exception as error:
        return _spark_failure(error)


def _spark_failure(error: Exception) -> int:
    """An error in a worker arrives as text: find ours in it."""
    from spark_replay.failures import cause_of

    name, line = cause_of(error)
    if name == "NoSpark":
        return _complain(EX_UNAVAILABLE, line)
    data_errors = (CorruptLog.__name__, LogError.__name__, OutsideHistory.__name__)
    if name in (BadRequest.__name__, UnreadableTime.__name__):
        return _complain(EX_USAGE, line)
    return _complain(EX_DATAERR if name in data_errors else EX_SOFTWARE, line)


def _complain(status: int, line: str) -> int:
    click.echo(f"spark_replay: {line}", err=True)
    return status


if __name__ == "__main__":
    sys.exit(run())
