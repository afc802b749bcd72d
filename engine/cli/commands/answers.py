"""Our own commands `find`, `biography`, `history`, `diff`, `what_if` and `spans`: a running broker answers from its
history.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from rewindmq.engine.cli.client import Json, RequestRefused
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import beginning
from rewindmq.engine.cli.lookups import definition_argument, unanswered
from rewindmq.engine.cli.progress import ProgressLine
from rewindmq.engine.cli.rows import Asked, Row, Then, commands
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.times import A_MOMENT, A_TIME, MOMENT, TIME
from rewindmq.engine.cli.usage import command, flag, option
from rewindmq.engine.cli.values import Value, json_line

if TYPE_CHECKING:
    from rewindmq.projections.traces.spans import Span, Spans

FOUND = "message published user queues exchange routing_key origin payload_bytes properties payload"
OUTCOMES = (
    "partition offset timestamp event user queue outcome message_id consumer delivery_count reason rule origin why"
)
SUMMARY = "outcome rule user change"
CHANGED = "before before_rule after after_rule messages"
DIFFERENCES = "message_id before before_at before_rule after after_at after_rule"

FORMAT = option("--format form", "table, or a JSON object a line.", click.Choice(["table", "json"]))
SINCE = f"Published since then: {A_TIME}."
UNTIL = option("--until TIME", "Published up to then, as --since.", TIME)
TO_NOW = "as --from (default: now)."
MOST_AT_ONCE = 1_000  # messages in one answer


@command(
    "find [QUEUE]",
    option("--message-id ID", "The property message_id."),
    option("--correlation-id ID", "The property correlation_id."),
    option("--header NAME=VALUE", "A header with this value. A value that is not text is JSON."),
    option("--body TEXT", "A text that is in the body."),
    flag("--unrouted", "Only messages that no queue took (administrators)."),
    option("--since TIME", SINCE, TIME),
    UNTIL,
    option("--limit", "Number of messages shown at most.", click.IntRange(min=1), 100),
    option("--format form", "table, or a JSON object a line as soon as found.", click.Choice(["table", "json"])),
)
def find(
    settings: CliSettings, queue: str | None, limit: int, form: str | None, unrouted: bool, **given: str | None
) -> None:
    """Find messages by what is in them, in QUEUE or in all queues of the virtual host.

    Searches the history, the newest messages first: also those that are gone. `message` is the name by which
    `biography` shows a message's life.

    \b
    Examples:
      rewindmq find --message-id 4711
      rewindmq find orders --header customer=alice --since 2h
      rewindmq find orders --body '"order": 4711' --format json
      rewindmq find --unrouted --since 2h
    """
    query = {name: value for name, value in given.items() if value is not None}
    if unrouted:
        query["unrouted"] = "true"
    if not query.keys() - {"since", "until"}:
        named = "--message-id, --correlation-id, --header NAME=VALUE, --body TEXT or --unrouted"
        raise CliError(USAGE, f"say what to find: {named}")
    if query.get("header", "a=b").find("=") < 1:
        raise CliError(USAGE, f"--header is NAME=VALUE, not {query['header']!r}")
    where = f"vhost '{settings.vhost_name}'" if queue is None else f"queue '{queue}' in vhost '{settings.vhost_name}'"
    if is_json(settings, form):
        for message in found(settings, queue, query, limit):
            click.echo(json.dumps(message, ensure_ascii=False, allow_nan=False))
        return
    settings.banner(f"Searching the history of {where} ...")
    rows = [message_row(message) for message in found(settings, queue, query, limit)]
    settings.list_for_people(rows)
    if len(rows) == limit:
        settings.banner(f"... these are the newest {limit}: there may be more (--limit, --until)")
    elif not rows:
        settings.banner("... no message of the history that is kept matches")


def pages(settings: CliSettings, what: str, queue: str | None, query: dict[str, str]) -> Iterator[Json]:
    """Yield the broker's answers to a question, one after the other. CliError."""
    client, where = settings.client(), ("history", what, settings.vhost_name, *(() if queue is None else (queue,)))
    while True:
        try:
            page = client.get_one(*where, **query)
        except RequestRefused as refused:
            raise unanswered(Asked(settings, {}), refused) from None
        yield page
        if page["next"] is None:
            return
        query["next"] = str(page["next"])


def found(settings: CliSettings, queue: str | None, query: dict[str, str], limit: int) -> Iterator[Json]:
    """Yield at most `limit` messages as the broker finds them. CliError."""
    count = searched = read = 0
    query["limit"] = str(min(limit, MOST_AT_ONCE))
    with ProgressLine("Searching") as progress:
        for page in pages(settings, "find", queue, query):
            messages = cast(list[Json], page["messages"])
            count += len(messages)
            searched += cast(int, page["searched"])
            read += cast(int, page["read"])
            progress.show(searched, cast(int, page["left"]), f"{count} found")
            yield from messages
            if count >= limit:
                break
            query["limit"] = str(min(limit - count, MOST_AT_ONCE))
        progress.note(f"... searched {searched} records, and read {read} of them")


def message_row(message: Json) -> dict[str, Value]:
    """Return a message as it is listed for people: the body is cut and printable."""
    row = cast(dict[str, Value], {name: message.get(name) for name in FOUND.split()})
    properties = cast(dict[str, Value], message["properties"])
    row["queues"] = " ".join(cast(list[str], message["queues"]))
    row["origin"] = origin_text(message)
    row["properties"] = json_line(properties) if properties else ""
    row["payload"] = beginning(str(message["payload"]))
    return row


def is_json(settings: CliSettings, form: str | None) -> bool:
    """Return True if the answer is to be printed as JSON."""
    return form == "json" or (form is None and settings.formatter in ("json", "json_stream"))


def try_policies(asked: Asked) -> None:
    """CliError unless there is a definition to try. Writes the definitions as the API takes them."""
    given = [name for name in ("policy", "operator_policy") if asked[name] is not None]
    for name in given:
        asked[name] = json.dumps(definition_argument(asked[name]), allow_nan=False)
    if not given:
        raise CliError(USAGE, "say what to try: --policy or --operator-policy")


def show_worlds(asked: Asked, answer: Json) -> None:
    """Print a queue as it was and as it would have been."""
    settings = asked.settings
    if is_json(settings, asked["form"]):
        click.echo(json.dumps(answer, ensure_ascii=False, allow_nan=False))
    else:
        settings.banner(asked.text("Queue '{queue}' of vhost '{vhost}', as recorded and as it would have been ..."))
        settings.show(worlds_compared(answer))
        settings.banner("\nMessages that would have ended differently ...")
        settings.show(cast(list[Json], answer["summary"]), CHANGED.split())
        settings.banner("\nThe first of them ...")
        settings.show(cast(list[Json], answer["rows"]), DIFFERENCES.split())
        settings.banner(f"\nWhat is not known ({assumptions_text(answer)}) ...")
        for line in cast(list[str], answer["limits"]):
            settings.banner(f"- {line}")
    if not answer["complete"]:
        why = "time for one question" if answer["stopped"] == "time" else "memory for one question"
        reached = f"this is the answer up to offset {answer['to']} of {answer['partition']}"
        click.echo(f"the broker's {why} was over: {reached}, {answer['left']} events are left", err=True)


def worlds_compared(answer: Json) -> list[dict[str, Value]]:
    """Return a row for each outcome and rule, with its messages as recorded and under the policy; then the depths."""
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


def show(title: str, columns: str) -> Then:
    """Print the rows of an answer, and say on stderr when there are others."""
    return lambda asked, answer: show_rows(asked, answer, title, columns.split())


def show_changes(asked: Asked, answer: Json) -> None:
    """Print the changes of a queue, or their sums."""
    columns = f"change {OUTCOMES}"
    if asked["summary"]:
        answer = {"rows": answer["summary"], "complete": answer["complete"]}
        columns = SUMMARY
    show_rows(asked, answer, "Changes in queue '{queue}' of vhost '{vhost}' ...", columns.split())


def show_rows(asked: Asked, answer: Json, title: str, columns: Sequence[str]) -> None:
    """Print rows, and say on stderr when there are others."""
    rows = cast(list[Json], answer["rows"])
    if is_json(asked.settings, asked["form"]):
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False, allow_nan=False))
    else:
        asked.settings.banner(asked.text(title))
        asked.settings.list_for_people([as_listed(row, columns) for row in rows])
    if answer.get("more"):
        click.echo(f"... and {answer['more']} more (--limit, --summary)", err=True)
    if not answer["complete"]:
        click.echo("the broker's time for one question was over: there may be more", err=True)


def as_listed(row: Json, columns: Sequence[str]) -> dict[str, Value]:
    """Return a row for people."""
    listed = cast(dict[str, Value], {name: row.get(name) for name in columns})
    if "origin" in listed:
        listed["origin"] = origin_text(row)
    return listed


def origin_text(row: Json) -> str:
    """Return the source of a message that was made from another one, and how."""
    origin = cast(Json | None, row.get("origin"))
    return "" if origin is None else f"{origin['reason']} {origin['queue']}:{origin['message_id']}"


@command(
    "spans [QUEUE]",
    option("--since TIME", SINCE, TIME, required=True),
    UNTIL,
    option("--otlp URL", "Send the spans to the collector there, such as http://localhost:4318."),
    option("--header headers NAME=VALUE", "A header for the collector.", multiple=True),
)
def spans(
    settings: CliSettings, queue: str | None, since: str, until: str | None, otlp: str | None, headers: tuple[str, ...]
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
    from rewindmq.projections.traces.spans import Spans

    query = {"since": since} | ({} if until is None else {"until": until})
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


def tell_waiting(found: "Spans") -> None:
    """Print on stderr how many stays have no span yet."""
    if found.waiting:
        click.echo(f"messages that still wait, without a span of their stay: {found.waiting}", err=True)


def portions(settings: CliSettings, queue: str | None, query: dict[str, str], found: "Spans") -> "Iterator[list[Span]]":
    """Yield the spans of each answer of the broker. CliError."""
    records = count = 0
    with ProgressLine("Reading") as progress:
        for answer in pages(settings, "traces", queue, query):
            spans = [span for row in cast(list[Json], answer["rows"]) for span in spans_of(row, found)]
            count += len(spans)
            left = cast(int, answer["left"])
            records = max(records, left)
            progress.show(records - left, left, f"{count} spans")
            yield spans


def spans_of(row: Json, found: "Spans") -> "list[Span]":
    """Return the spans that end with a row of an answer."""
    from rewindmq.projections.rewind import parse_time
    from rewindmq.projections.traces.trace_context import Trace

    if row["timestamp"] is None or row["message_id"] is None:
        return []
    trace = cast(dict[str, Any] | None, row.get("trace"))
    return found.add(row, parse_time(str(row["timestamp"])), None if trace is None else Trace(**trace))


COMMANDS = commands(
    find,
    Row(
        "history QUEUE",
        "Show the last outcomes in QUEUE.\n\nRows say what came, who got it, how it left, and which rule decided.",
        "",
        "GET history/outcomes/{vhost}/{queue}?tail&until",
        then=show("The last outcomes in queue '{queue}' of vhost '{vhost}' ...", OUTCOMES),
        refused=unanswered,
        params=(
            option("--tail", "Number of the last outcomes.", click.IntRange(1, 10_000), 100),
            option("--until TIME", f"Outcomes up to then: {A_TIME}.", TIME),
            FORMAT,
        ),
        examples=("rewindmq history orders --tail 20", "rewindmq history orders --until 2h --format json"),
    ),
    Row(
        "biography",
        "Show the life of a message, its dead letters and its copies.\n\n"
        "The message is named by partition and offset of its publish, as `find` shows it. Dead letters and restored"
        " messages are followed into their queues.",
        "",
        "GET history/biography/{vhost}/{message}?queue",
        then=show("The life of message {message} ...", OUTCOMES),
        refused=unanswered,
        params=(
            option("--queue QUEUE", "Of a message that was published to several queues, only this one."),
            FORMAT,
            click.Argument(["message"], metavar="PARTITION:OFFSET"),
        ),
        examples=("rewindmq biography queues-1:5533", "rewindmq biography queues-1:5533 --queue orders --format json"),
    ),
    Row(
        "diff QUEUE",
        "Show what changed in QUEUE between two moments.\n\n"
        "Rows say which messages came and left, by which user and by which rule.",
        "",
        "GET history/diff/{vhost}/{queue}?from&to&limit",
        then=show_changes,
        refused=unanswered,
        params=(
            option("--from TIME", f"A moment: {A_MOMENT}.", MOMENT, required=True),
            option("--to TIME", f"A later moment, {TO_NOW}", MOMENT, "0s"),
            flag("--summary", "Only the sums, by outcome, rule and user."),
            option("--limit", "Number of messages at most.", click.IntRange(1, 10_000), 1_000),
            FORMAT,
        ),
        examples=(
            "rewindmq diff orders --from 2h --summary",
            "rewindmq diff orders --from mark:before-release --to 10m",
        ),
    ),
    Row(
        "what_if QUEUE",
        "Show what a policy would have done to QUEUE.\n\n"
        "The recorded events are folded a second time under the policy. Counts say how messages ended as recorded, and"
        " how they would have ended; then come messages that would have ended differently. The queue itself is not"
        " changed.",
        "",
        "GET history/what-if/{vhost}/{queue}?policy&operator_policy&from&to&limit",
        then=show_worlds,
        refused=unanswered,
        check=try_policies,
        params=(
            option("--policy JSON", "A definition in place of the queue's policy; {} is none."),
            option("--operator-policy JSON", "A definition in place of its operator policy; {} is none."),
            option("--from TIME", f"From then on: {A_MOMENT}.", MOMENT, "1h"),
            option("--to TIME", f"Up to then, {TO_NOW}", MOMENT, "0s"),
            option("--limit", "Number of messages at most.", click.IntRange(0, 10_000), 100),
            FORMAT,
        ),
        examples=(
            "rewindmq what_if orders --policy '{\"max-length\": 1000}'",
            "rewindmq what_if orders --policy '{\"message-ttl\": 60000}' --from 1d --to mark:before-release",
            "rewindmq what_if orders --operator-policy '{\"max-length\": 100000}' --formatter json",
        ),
    ),
    spans,
)
