"""`make demo`: a week of real departures through a RewindMQ broker, and a mistaken purge: how it is seen, and undone.

    publishers -> topic exchange -> queues with policies -> consumers that ack, nack and crash
    an operator purges the wrong queue, and brings back what was in it
    Spark, from the log alone: that queue a moment before, one message's biography, an audit, a page that shows it all

Everything that it makes lies in demo-data/ (log, state) and demo.html.
"""

import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.demo import page
from tests.demo.flights import AIRPORTS, Flight, departures
from tests.demo.services import OPEN_DESKS, Desk, DoomedDesk, declare, publish
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "demo-data"
PAGE = ROOT / "demo.html"
REWINDMQ = Path(sys.executable).with_name("rewindmq")

# name, pattern, definition: what an operator would set
POLICIES = (
    ("desks", r"^airport\.", '{"delivery-limit":3,"dead-letter-exchange":"dead"}'),
    ("carriers", r"^carrier\.", '{"max-length":60,"dead-letter-exchange":"dead"}'),
    ("board", r"^board$", '{"message-ttl":1500}'),
)
UNREADABLE = "SMF"  # the desks never manage a flight to Sacramento: it comes back until the delivery limit takes it

console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)


class Broker:
    """`rewindmq start` as a process of its own, and its command line."""

    def __init__(self, data: Path = DATA) -> None:
        shutil.rmtree(data, ignore_errors=True)
        self.amqp_port, self.http_port = free_port(), free_port()
        self.process = subprocess.Popen(
            [REWINDMQ, "start", "--data", data, "--amqp-port", str(self.amqp_port), "--http-port", str(self.http_port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().strip()
        if not ready:
            sys.exit("the broker did not start; its error is above")
        console.print(f"[dim]{ready}[/dim]")

    def command(self, *words: str) -> str:
        """Run `rewindmq ...` as an operator would, show it, and return what it prints."""
        console.print(f"[bold]$ rewindmq {' '.join(_quoted(word) for word in words)}[/bold]")
        done = subprocess.run(
            [REWINDMQ, *words, "--http-port", str(self.http_port)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"rewindmq {words[0]} failed: {done.stderr}")
        return done.stdout

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        console.print(f"[dim]the broker has stopped cleanly (exit status {status})[/dim]")


def _quoted(word: str) -> str:
    return f"'{word}'" if set(word) & set('{}"^$\\ ') else word


def run_the_week(broker: Broker, flights: list[Flight]) -> list[Desk]:
    """Publish everything while the desks work; one more desk is killed on the way with messages in its hands."""
    desks = [Desk(broker.amqp_port, f"airport.{airport}", UNREADABLE) for airport in AIRPORTS]
    desks += [Desk(broker.amqp_port, f"carrier.{carrier}", slow=0.002) for carrier in OPEN_DESKS]
    for desk in desks:
        desk.start()
    doomed = DoomedDesk(broker.amqp_port, "airport.JFK")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(len(AIRPORTS)) as pool:
        futures = []
        for airport in AIRPORTS:
            own = [flight for flight in flights if flight.airport == airport]
            task = progress.add_task(f"publishing {airport}", total=len(own))
            futures.append(pool.submit(publish, broker.amqp_port, own, partial(progress.advance, task)))
        futures[0].result()
        doomed.kill()
        progress.console.print("[red]a desk of airport.JFK was killed[/red]; what it held goes to the other one")
        for future in futures:
            future.result()
    for desk in desks:
        desk.stopping.set()
    for desk in desks:
        desk.join(30)
    return desks


def show_desks(desks: list[Desk]) -> None:
    table = Table("desk", "delivered", "acked", "handed back", title="what the consumers did", title_justify="left")
    for desk in desks:
        table.add_row(desk.queue, *(str(desk.counts[what]) for what in ("delivered", "acked", "nacked")))
    console.print(table)


def clock(time: datetime) -> str:
    return f"{time:%H:%M:%S.%f}"[:-3]


def show_before_purge(spark: "SparkSession", moment: str) -> None:
    """The purged queue a moment before, by Spark, from the log alone."""
    from rewindmq.spark_replay.history.state import state_at

    state = state_at(spark, str(DATA), time=moment, queue="cancelled")
    columns = ("position", "message_id", "published", "routing_key", "body")
    rows = state.messages.orderBy("position").select(*columns).collect()
    table = Table(
        "position",
        "message",
        "published",
        "routing key",
        "body",
        title_justify="left",
        title=f"queue cancelled at {moment}: {len(rows)} messages, the first and last three",
    )
    for row in rows[:3] + rows[-3:]:
        body = bytes(row.body).decode()
        table.add_row(str(row.position), str(row.message_id), clock(row.published), row.routing_key, body)
    console.print(table)


def show_biography(spark: "SparkSession") -> "tuple[str, list[Row]]":
    """A message that ran into the delivery limit: everything that happened to it, on to the dead-letter queue. Its
    partition:offset, and the rows."""
    from rewindmq.spark_replay.history.history import biography, history

    rows = history(spark, str(DATA)).where("outcome = 'delivery_limit'").select("partition", "message_id", "queue")
    victim = rows.orderBy("message_id").first()
    assert victim is not None, "no message ran into the delivery limit"
    message = f"{victim.partition}:{victim.message_id}"
    table = Table(
        "time",
        "queue",
        "what happened",
        "asked by",
        "delivery count",
        "which rule decided",
        title=f"biography of message {message}",
        title_justify="left",
    )
    found = biography(spark, str(DATA), message).collect()
    life = [row for row in found if row.queue in (victim.queue, "dead.letters")]
    for row in life:
        table.add_row(
            clock(row.timestamp),
            row.queue,
            row.outcome + (f" ({row.reason})" if row.reason else ""),
            row.event,
            "" if row.delivery_count is None else str(row.delivery_count),
            row.rule or "",
        )
    console.print(table)
    return message, life


def show_audit(spark: "SparkSession") -> bool:
    from rewindmq.spark_replay.audit.audit import audit
    from rewindmq.spark_replay.commands.report import print_report

    findings = audit(spark, str(DATA))
    print_report(findings, "table")
    return all(finding.ok for finding in findings)


def main() -> int:
    began = time.monotonic()
    PAGE.unlink(missing_ok=True)  # `make notebook` takes it for the sign of a demo that has ended
    console.rule("1. A broker, policies, and a week of departures")
    broker = Broker()
    try:
        for name, pattern, definition in POLICIES:
            broker.command("set_policy", name, pattern, definition, "--apply-to", "queues")
        declare(broker.amqp_port)
        flights = departures()
        cancelled = sum(flight.status == "cancelled" for flight in flights)
        console.print(f"{len(flights):,} departures of the week of 5 February 2013, {cancelled} of them cancelled")
        show_desks(run_the_week(broker, flights))
        columns = ["name", "type", "messages_ready", "messages_unacknowledged", "policy"]
        console.print(broker.command("list_queues", *columns, "--formatter=pretty_table", "--silent"))

        console.rule("2. An operator purges the wrong queue")
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        time.sleep(0.05)  # the purge comes after the moment, not within its millisecond
        console.print(broker.command("purge_queue", "cancelled"))
        console.print(broker.command("list_queues", "name", "messages", "--quiet"))

        console.rule("3. ... and undoes it")
        console.print(broker.command("restore", "cancelled", "--undo", "purge", "--formatter=pretty_table"))
    finally:
        broker.stop()

    console.rule("4. What Spark makes of the log")
    from rewindmq.spark_replay.session import session

    with console.status("starting Spark"):
        spark = session()
    show_before_purge(spark, moment)
    message, life = show_biography(spark)
    sound = show_audit(spark)
    page.write(spark, DATA, PAGE, message, life)
    spark.stop()

    console.rule(f"Done in {time.monotonic() - began:.0f} seconds")
    console.print(f"The purge and its undo, a message's life, what another limit would have kept:  {PAGE.name}")
    console.print("Go on by yourself; the history stays in demo-data/:")
    console.print(f"  .venv/bin/rewindmq rewind cancelled --at {moment} --data demo-data", soft_wrap=True)
    console.print(f"  .venv/bin/rewindmq spark state-at --data demo-data --time {moment}", soft_wrap=True)
    console.print("  .venv/bin/rewindmq spark history --data demo-data --queue carrier.UA")
    console.print("  .venv/bin/rewindmq start --data demo-data     # and the broker goes on where it stopped")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
