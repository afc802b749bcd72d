"""`restore`: lets a running broker bring back the messages that a condition over the history finds.

It can also put a queue into another one, as it would be if a message, a user or a deployment had not been (B-11).

    found = find(spark, "DATA", "outcome = 'expired' and timestamp >= '2026-11-21 09:00:00'", queue="orders")
    bring_back(found, Broker("http://localhost:15672", "guest", "guest"), to="orders.again", dry_run=False)

Spark finds the messages, the broker publishes them (engine/rewind/restorations.py): each message once under the
restoration's name, in old order, as it was published. So a restoration may be run again, and one that was cut short is
finished by another run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from rewindmq.engine.keeping.location import HistoryMismatch, Location
from rewindmq.engine.keeping.single_records import record_digest
from rewindmq.spark_replay.commands.failures import sql_slip
from rewindmq.spark_replay.history.history import history_frame, plan_history
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import located
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.what_if.candidates import candidate_without
from rewindmq.spark_replay.what_if.what_if import what_if

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = 5_000  # messages in one request
SECONDS = 600.0
CONNECT_SECONDS = 10.0
COUNTS = ("messages", "message_bytes", "restored", "duplicates", "refused")


class RestoreRefused(Exception):
    """The broker refuses, or does not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages of a queue in the history at `location`, by id, in the order in which they are brought back."""

    vhost: str
    queue: str
    partition: str
    ids: tuple[int, ...]
    location: Location


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker. `url`: of its management API."""

    url: str
    user: str
    password: str


def check_broker(broker: Broker) -> None:
    """Raise Refused when the broker does not answer, or does not know the user. Needs no Spark."""
    with _client(broker) as client:
        _answer(client, "GET", "/api/whoami", "")


def find(
    spark: "SparkSession", location: Location | str, condition: str, queue: str | None = None
) -> list[FoundMessages]:
    """Return the messages of the rows of HISTORY that fulfil `condition` (SQL), by queue and partition.

    Raises BadRequest."""
    location = located(location)
    rows = history_frame(spark, location, plan_history(location, {}), queue)
    found: dict[tuple[str, str, str], list[int]] = {}
    try:
        chosen = rows.where(condition).where("message_id is not null and queue is not null")
        for row in chosen.select("vhost", "queue", "partition", "message_id").distinct().toLocalIterator():
            found.setdefault((row.vhost, row.queue, row.partition), []).append(row.message_id)
    except Exception as error:  # of many classes, py4j's too
        slip = sql_slip(error)
        if slip is None:
            raise
        raise BadRequest(f"--where: {slip}") from None
    return [FoundMessages(*place, tuple(sorted(ids)), location) for place, ids in sorted(found.items())]


def bring_back(
    found: Sequence[FoundMessages],
    broker: Broker,
    to: str | None = None,
    name: str | None = None,
    dry_run: bool = False,
) -> Iterator[dict[str, Any]]:
    """Bring the messages back. Yields, for each queue, the restoration's name and how many messages.

    With the last id of each request goes the digest of its record: a broker of another history refuses.
    Raises RestoreRefused, HistoryMismatch, LogError."""
    with _client(broker) as client:
        for each in found:
            log = next(one for one in each.location.open().queues if one.name == each.partition)
            done: dict[str, Any] = {"vhost": each.vhost, "queue": each.queue, "to": to or each.queue, "name": name}
            for ids in pages(each.ids):
                requested: dict[str, Any] = {"messages": ids, "partition": each.partition, "dry_run": dry_run}
                requested["records"] = {str(ids[-1]): record_digest(log, ids[-1])}
                requested |= {key: value for key, value in (("to", to), ("name", name)) if value is not None}
                answer = _ask(client, each, requested)
                done["name"] = answer["name"]
                for count in COUNTS:
                    if count in answer:
                        done[count] = done.get(count, 0) + answer[count]
            if not dry_run:
                lineage.wrote_queue(broker.url, each.vhost, to or each.queue)
            yield done


def without(
    spark: "SparkSession", location: Location, texts: Sequence[str], queue: str, end: str | None
) -> list[FoundMessages]:
    """The messages that would be in the queue at `end` (None: now), if the events that `texts` name had not happened.

    `texts`: in the form of `--without`."""
    candidate = candidate_without(texts)
    rows = what_if(spark, location, [candidate], end=end, queue=queue).standing.collect()
    found: dict[tuple[str, str, str], list[int]] = {}
    for row in sorted(rows, key=lambda each: bool(each.position < 0)):
        found.setdefault((row.vhost, row.queue, row.partition), []).append(row.message_id)
    return [FoundMessages(*place, tuple(ids), location) for place, ids in found.items()]


def pages(ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ids in requests in which they ascend: within a request the broker goes by id."""
    page: list[int] = []
    for each in ids:
        if page and (len(page) == PAGE or each < page[-1]):
            yield page
            page = []
        page.append(each)
    if page:
        yield page


def _client(broker: Broker) -> httpx2.Client:
    try:
        return httpx2.Client(
            base_url=broker.url,
            auth=(broker.user, broker.password),
            trust_env=False,
            timeout=httpx2.Timeout(SECONDS, connect=CONNECT_SECONDS),
        )
    except httpx2.InvalidURL as error:
        raise RestoreRefused(f"{broker.url}: {error}") from None


def _ask(client: httpx2.Client, found: FoundMessages, requested: dict[str, Any]) -> Any:
    path = f"/api/queues/{quote(found.vhost, safe='')}/{quote(found.queue, safe='')}/restore"
    return _answer(client, "POST", path, f" queue '{found.queue}' in vhost '{found.vhost}':", requested)


def _answer(client: httpx2.Client, method: str, path: str, about: str, requested: dict[str, Any] | None = None) -> Any:
    try:
        answer = client.request(method, path, json=requested)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise RestoreRefused(f"{client.base_url}: {error}") from None
    try:
        said = answer.json()
    except ValueError:
        said = None
    if answer.is_success and isinstance(said, dict):
        return said
    reason = said.get("reason") if isinstance(said, dict) else None
    refusal = HistoryMismatch if answer.status_code == httpx2.codes.CONFLICT else RestoreRefused
    raise refusal(f"{client.base_url}:{about} {reason or f'answered {answer.status_code}'}")
