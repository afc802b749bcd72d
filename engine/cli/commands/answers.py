"""Our own commands `find`, `biography`, `history`, `diff`, `what_if` and `spans`: a running broker answers from its
history.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, cast

import click

from rewindmq.engine.cli.client import Json, Refused
from rewindmq.engine.cli.commands.history import BODY_SHOWN, printable
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.lookups import definition_argument
from rewindmq.engine.cli.progress import Progress
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.times import A_MOMENT, A_TIME, moment_from, time_from
from rewindmq.engine.cli.values import Value, json_line
from rewindmq.projections.rewind import parse_time
from rewindmq.projections.traces.spans import Span, Spans
from rewindmq.projections.traces.trace_context import Trace

FOUND = (
    "message",
    "published",
    "user",
    "queues",
    "exchange",
    "routing_key",
    "origin",
    "payload_bytes",
    "properties",
    "payload",
)
OUTCOMES = (
    "partition",
    "offset",
    "timestamp",
    "event",
    "user",
    "queue",
    "outcome",
    "message_id",
    "consumer",
    "delivery_count",
    "reason",
    "rule",
    "origin",
)
ENDED = ("outcome", "rule", "before", "after")
CHANGED = ("before", "before_rule", "after", "after_rule", "messages")
DIFFERENCES = ("message_id", "before", "before_at", "before_rule", "after", "after_at", "after_rule")
SUMMARY = ("outcome", "rule", "user", "change")

with_format = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), help="table, or a JSON object a line."
)
MOST_AT_ONCE = 1_000  # messages in one answer


@click.command("find")
@click.option("--message-id", metavar="ID", help="The property message_id.")
@click.option("--correlation-id", metavar="ID", help="The property correlation_id.")
@click.option("--header", metavar="NAME=VALUE", help="A header with this value. A value that is no text is JSON.")
@click.option("--body", metavar="TEXT", help="A text that is in the body.")
@click.option("--since", metavar="TIME", help=f"Published since then: {A_TIME}.")
@click.option("--until", metavar="TIME", help="Published up to then, as --since.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Number of messages shown at most."
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), help="table, or a JSON object a line as soon as found."
)
@click.argument("queue", required=False)
@with_settings
def find(
    settings: Settings,
    queue: str | None,
    message_id: str | None,
    correlation_id: str | None,
    header: str | None,
    body: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    form: str | None,
) -> None:
    """Find messages by what is in them, in QUEUE or in all queues of the virtual host.

    Searches the history, the newest messages first: also those that are gone. `message` is the name by which
    `biography` shows a message's life.

    \b
    Examples:
      rewindmq find --message-id 4711
      rewindmq find orders --header customer=alice --since 2h
      rewindmq find orders --body '"order": 4711' --format json
    """
    given = {"message_id": message_id, "correlation_id": correlation_id, "header": header, "body": body}
    asked = {name: value for name, value in given.items() if value is not None}
    if not asked:
        raise CliError(USAGE, "say what to find: --message-id, --correlation-id, --header NAME=VALUE or --body TEXT")
    if header is not None and header.find("=") < 1:
        raise CliError(USAGE, f"--header is NAME=VALUE, not {header!r}")
    for name, time in (("since", since), ("until", until)):
        if time is not None:
            asked[name] = time_from(time)
    as_json = form == "json" or (form is None and settings.formatter in ("json", "json_stream"))
    where = f"vhost '{settings.vhost_name}'" if queue is None else f"queue '{queue}' in vhost '{settings.vhost_name}'"
    if not as_json:
        settings.banner(f"Searching the history of {where} ...")
    rows: list[dict[str, Value]] = []
    for message in found(settings, queue, asked, limit):
        if as_json:
            click.echo(json.dumps(message, ensure_ascii=False, allow_nan=False))
        else:
            rows.append(message_row(message))
    if not as_json:
        settings.show(FOUND, rows)
        if len(rows) == limit:
            settings.banner(f"... these are the newest {limit}: there may be more (--limit, --until)")
        elif not rows:
            settings.banner("... no message of the history that is kept matches")


def found(settings: Settings, queue: str | None, asked: dict[str, str], limit: int) -> Iterator[Json]:
    """Yields at most `limit` messages as the broker finds them, an answer after the other. CliError."""
    client = settings.client()
    where = ("history", "find", settings.vhost_name, *(() if queue is None else (queue,)))
    count = searched = read = 0
    with Progress("Searching") as progress:
        while count < limit:
            try:
                page = client.get_one(*where, **asked, limit=str(min(limit - count, MOST_AT_ONCE)))
            except Refused as refused:
                if refused.status in (400, 404):
                    raise CliError(DATA, refused.reason) from None
                raise
            messages = cast(list[Json], page["messages"])
            count += len(messages)
            searched += cast(int, page["searched"])
            read += cast(int, page["read"])
            progress.show(searched, cast(int, page["left"]), f"{count} found")
            yield from messages
            if page["next"] is None:
                break
            asked = asked | {"next": str(page["next"])}
        progress.note(f"... searched {searched} records, and read {read} of them")


def message_row(message: Json) -> dict[str, Value]:
    """A message as it is listed for people: the body is cut and printable."""
    row = cast(dict[str, Value], {name: message.get(name) for name in FOUND})
    properties = cast(dict[str, Value], message["properties"])
    row["queues"] = " ".join(cast(list[str], message["queues"]))
    row["origin"] = origin_text(message)
    row["properties"] = json_line(properties) if properties else ""
    row["payload"] = printable(str(message["payload"]), BODY_SHOWN)
    return row


@click.command("biography")
@click.option("--queue", metavar="QUEUE", help="Of a message that was published to several queues, only this one.")
@click.argument("message", metavar="PARTITION:OFFSET")
@with_format
@with_settings
def biography(settings: Settings, message: str, queue: str | None, form: str | None) -> None:
    """Show the life of a message, its dead letters and its copies.

    The message is named by partition and offset of its publish, as `find` shows it. Dead letters and restored messages
    are followed into their queues.

    \b
    Examples:
      rewindmq biography queues-1:5533
      rewindmq biography queues-1:5533 --queue orders --format json
    """
    query = {} if queue is None else {"queue": queue}
    answer = asked(settings, ("biography", settings.vhost_name, message), query)
    show(settings, form, answer, f"The life of message {message} ...", OUTCOMES)


@click.command("history")
@click.option(
    "--tail", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Number of the last outcomes."
)
@click.option("--until", metavar="TIME", help=f"Outcomes up to then: {A_TIME}.")
@click.argument("queue")
@with_format
@with_settings
def history(settings: Settings, queue: str, tail: int, until: str | None, form: str | None) -> None:
    """Show the last outcomes in QUEUE.

    Rows say what came, who got it, how it left, and which rule decided.

    \b
    Examples:
      rewindmq history orders --tail 20
      rewindmq history orders --until 2h --format json
    """
    query = {"tail": str(tail)} | ({} if until is None else {"until": time_from(until)})
    answer = asked(settings, ("outcomes", settings.vhost_name, queue), query)
    show(settings, form, answer, f"The last outcomes in queue '{queue}' of vhost '{settings.vhost_name}' ...", OUTCOMES)


@click.command("diff")
@click.option("--from", "start", required=True, metavar="TIME", help=f"A moment: {A_MOMENT}.")
@click.option("--to", "end", default="0s", metavar="TIME", help="A later moment, as --from (default: now).")
@click.option("--summary", is_flag=True, help="Only the sums, by outcome, rule and user.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Number of messages at most."
)
@click.argument("queue")
@with_format
@with_settings
def diff(settings: Settings, queue: str, start: str, end: str, summary: bool, limit: int, form: str | None) -> None:
    """Show what changed in QUEUE between two moments.

    Rows say which messages came and left, by which user and by which rule.

    \b
    Examples:
      rewindmq diff orders --from 2h --summary
      rewindmq diff orders --from mark:before-release --to 10m
    """
    moments = {"from": moment_from(start), "to": moment_from(end)}
    answer = asked(settings, ("diff", settings.vhost_name, queue), {**moments, "limit": str(limit)})
    if summary:
        answer = {"rows": answer["summary"], "complete": answer["complete"], "more": 0}
    title = f"Changes in queue '{queue}' of vhost '{settings.vhost_name}' ..."
    show(settings, form, answer, title, SUMMARY if summary else ("change", *OUTCOMES))


@click.command("what_if")
@click.option("--policy", metavar="JSON", help="A definition in place of the queue's policy; {} is none.")
@click.option("--operator-policy", metavar="JSON", help="A definition in place of its operator policy; {} is none.")
@click.option("--from", "start", default="1h", show_default=True, metavar="TIME", help=f"From then on: {A_MOMENT}.")
@click.option("--to", "end", default="0s", metavar="TIME", help="Up to then, as --from (default: now).")
@click.option(
    "--limit", type=click.IntRange(0, 10_000), default=100, show_default=True, help="Number of messages at most."
)
@click.argument("queue")
@with_format
@with_settings
def what_if(
    settings: Settings,
    queue: str,
    policy: str | None,
    operator_policy: str | None,
    start: str,
    end: str,
    limit: int,
    form: str | None,
) -> None:
    """Show what a policy would have done to QUEUE.

    The recorded events are folded a second time under the policy. Counts say how messages ended as recorded, and how
    they would have ended; then come messages that would have ended differently. The queue itself is not changed.

    \b
    Examples:
      rewindmq what_if orders --policy '{"max-length": 1000}'
      rewindmq what_if orders --policy '{"message-ttl": 60000}' --from 1d --to mark:before-release
      rewindmq what_if orders --operator-policy '{"max-length": 100000}' --formatter json
    """
    given = {"policy": policy, "operator_policy": operator_policy}
    definitions = {
        name: json.dumps(definition_argument(text), allow_nan=False) for name, text in given.items() if text is not None
    }
    if not definitions:
        raise CliError(USAGE, "say what to try: --policy or --operator-policy")
    query = {**definitions, "from": moment_from(start), "to": moment_from(end), "limit": str(limit)}
    answer = asked(settings, ("what-if", settings.vhost_name, queue), query)
    if is_json(settings, form):
        click.echo(json.dumps(answer, ensure_ascii=False, allow_nan=False))
    else:
        settings.banner(f"Queue '{queue}' of vhost '{settings.vhost_name}', as recorded and as it would have been ...")
        settings.show(ENDED, worlds_compared(answer))
        settings.banner("\nMessages that would have ended differently ...")
        settings.show(CHANGED, cast(list[dict[str, Value]], answer["summary"]))
        settings.banner("\nThe first of them ...")
        settings.show(DIFFERENCES, cast(list[dict[str, Value]], answer["rows"]))
        settings.banner(f"\nWhat is not known ({assumptions_text(answer)}) ...")
        for line in cast(list[str], answer["limits"]):
            settings.banner(f"- {line}")
    if not answer["complete"]:
        why = "time for one question" if answer["stopped"] == "time" else "memory for one question"
        reached = f"this is the answer up to offset {answer['to']} of {answer['partition']}"
        click.echo(f"the broker's {why} was over: {reached}, {answer['left']} events are left", err=True)


def worlds_compared(answer: Json) -> list[dict[str, Value]]:
    """A row for each outcome and rule, with its messages as recorded and under the policy; then the depths."""
    worlds = {name: cast(Json, answer[name]) for name in ("before", "after")}
    rows: dict[tuple[str, str], dict[str, Value]] = {}
    for name, world in worlds.items():
        for each in cast(list[Json], world["outcomes"]):
            key = str(each["outcome"]), str(each["rule"] or "")
            row = rows.setdefault(key, {"outcome": key[0], "rule": key[1], "before": 0, "after": 0})
            row[name] = each["messages"]
    depths = [
        {"outcome": title, "rule": "", **{name: world[key] for name, world in worlds.items()}}
        for title, key in (("(greatest depth)", "greatest_depth"), ("(depth at the end)", "depth"))
    ]
    return [rows[key] for key in sorted(rows)] + depths


def assumptions_text(answer: Json) -> str:
    """Return a text with the number of consumers' acts that could not stay as recorded, by assumption."""
    return ", ".join(f"{name} {count}" for name, count in cast(Json, answer["assumptions"]).items())


def is_json(settings: Settings, form: str | None) -> bool:
    """Return True if the answer is to be printed as JSON."""
    return form == "json" or (form is None and settings.formatter in ("json", "json_stream"))


def asked(settings: Settings, what: tuple[str, ...], query: dict[str, str]) -> Json:
    """The broker's answer. CliError."""
    try:
        return settings.client().get_one("history", *what, **query)
    except Refused as refused:
        if refused.status in (400, 404):
            raise CliError(DATA, refused.reason) from None
        raise


def show(settings: Settings, form: str | None, answer: Json, title: str, columns: tuple[str, ...]) -> None:
    """Prints rows, and says on stderr when there are others."""
    rows = cast(list[Json], answer["rows"])
    if is_json(settings, form):
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False, allow_nan=False))
    else:
        settings.banner(title)
        settings.show(columns, [as_listed(row, columns) for row in rows])
    if answer.get("more"):
        click.echo(f"... and {answer['more']} more (--limit, --summary)", err=True)
    if not answer["complete"]:
        click.echo("the broker's time for one question was over: there may be more", err=True)


def as_listed(row: Json, columns: tuple[str, ...]) -> dict[str, Value]:
    """A row for people."""
    listed = cast(dict[str, Value], {name: row.get(name) for name in columns})
    if "origin" in listed:
        listed["origin"] = origin_text(row)
    return listed


def origin_text(row: Json) -> str:
    """The source of a message that came of another one, and how."""
    origin = cast(Json | None, row.get("origin"))
    return "" if origin is None else f"{origin['reason']} {origin['queue']}:{origin['message_id']}"


@click.command("spans")
@click.option("--since", required=True, metavar="TIME", help=f"Published since then: {A_TIME}.")
@click.option("--until", metavar="TIME", help="Published up to then, as --since.")
@click.option("--otlp", metavar="URL", help="Send the spans to the collector there, such as http://localhost:4318.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header for the collector.")
@click.argument("queue", required=False)
@with_settings
def spans(
    settings: Settings, queue: str | None, since: str, until: str | None, otlp: str | None, headers: tuple[str, ...]
) -> None:
    """Make spans of messages with a header traceparent.

    The messages are those of QUEUE, or of all queues of the virtual host. A span is the stay of a message in a queue,
    or a delivery. Spans are printed, a JSON object a line, or sent with OTLP over HTTP. A message that still waits has
    no span of its stay yet.

    \b
    Examples:
      rewindmq spans orders --since 2h
      rewindmq spans --since 1d --until 2h --otlp http://localhost:4318
      rewindmq spans --since 2h --otlp https://otlp.example.org --header authorization="Bearer TOKEN"
    """
    if headers and otlp is None:
        raise CliError(USAGE, "--header is for the collector: give --otlp URL")
    pairs = [header.partition("=") for header in headers]
    for name, separator, _ in pairs:
        if not separator or not name:
            raise CliError(USAGE, f"--header is NAME=VALUE, not {name!r}")
    query = {"since": time_from(since)} | ({} if until is None else {"until": time_from(until)})
    found = Spans()
    if otlp is None:
        for portion in portions(settings, queue, query, found):
            for span in portion:
                click.echo(json.dumps(asdict(span), ensure_ascii=False, allow_nan=False))
        tell_waiting(found)
        return
    from rewindmq.projections.traces import otlp as exporter  # a broker, which is a command, too, has no use for it

    try:
        with exporter.Collector(otlp, {name: value for name, _, value in pairs}) as collector:
            for portion in portions(settings, queue, query, found):
                collector.send(portion)
    except exporter.BadCollector as error:
        raise CliError(USAGE, str(error)) from None
    except exporter.CollectorAway as error:
        raise CliError(UNAVAILABLE, str(error)) from None
    except exporter.SpansRefused as error:
        raise CliError(DATA, str(error)) from None
    tell_waiting(found)
    if collector.rejected or collector.reason:
        why = f"the collector took {collector.sent} spans and rejected {collector.rejected}: {collector.reason}"
        if collector.rejected:
            raise CliError(DATA, why)
        click.echo(why, err=True)
    settings.banner(f"{collector.sent} spans were sent to {collector.url}")


def tell_waiting(found: Spans) -> None:
    """Prints on stderr how many stays have no span yet."""
    if found.waiting:
        click.echo(f"messages that still wait, without a span of their stay: {found.waiting}", err=True)


def portions(settings: Settings, queue: str | None, query: dict[str, str], found: Spans) -> Iterator[list[Span]]:
    """Yields the spans of each answer of the broker. CliError."""
    client = settings.client()
    where = ("history", "traces", settings.vhost_name, *(() if queue is None else (queue,)))
    records = count = 0
    with Progress("Reading") as progress:
        while True:
            try:
                answer = client.get_one(*where, **query)
            except Refused as refused:
                if refused.status in (400, 404):
                    raise CliError(DATA, refused.reason) from None
                raise
            spans = [span for row in cast(list[Json], answer["rows"]) for span in spans_of(row, found)]
            count += len(spans)
            left = cast(int, answer["left"])
            records = max(records, left)
            progress.show(records - left, left, f"{count} spans")
            yield spans
            if answer["next"] is None:
                return
            query = query | {"next": str(answer["next"])}


def spans_of(row: Json, found: Spans) -> list[Span]:
    """The spans that end with a row of an answer."""
    if row["timestamp"] is None or row["message_id"] is None:
        return []
    trace = cast(dict[str, Any] | None, row.get("trace"))
    return found.add(row, parse_time(str(row["timestamp"])), None if trace is None else Trace(**trace))


COMMANDS = (find, history, biography, diff, what_if, spans)
