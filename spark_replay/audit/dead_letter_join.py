"""Joins dead letters across partitions: the letters that sources sent with the letters that targets took in.

    in a task, with the audit of a partition     LetterRows: a row of LETTERS (columns.py) for each letter that is sent,
                                                 arrives or is given up, and how far a source's are forwarded
    at the driver, sorted by source and number   check_arrivals: each arrival was sent; what was forwarded has arrived

A letter's way ends in another partition, which may be read at another moment. So the end of each partition is read
twice: arrivals and forwards count up to the first, sent letters up to the second. So no effect that is written later
than its cause is ever seen without it.

The queues in which a letter should have arrived follow from bindings (`Destinations`). They are known where only the
routing key decides: in the default exchange, in direct and fanout exchanges. Queues and bindings count if they existed
before the death, and still do.
A message that moves with its queue to another partition has to arrive in the same queue there. Such messages are
forwarded apart from the queue's other letters: the reason of the rows tells the two kinds.

Letters of messages that had died before are exempt: in a cycle a queue may drop them. The target's own partition checks
that a letter is taken in only once (ledger.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.machine.data.effects import DeadLetter, Release
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import RELOCATED
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import DeadLettersForwarded, Event, Published
from rewindmq.schemas.metadata_events import Bound
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.location.log import read_messages

if TYPE_CHECKING:
    import pyarrow as pa

ARRIVALS = "arrivals"
NOTED = "letters"  # by such a row a task tells the driver how many letters it noted; it is not a finding
FORWARDED, SENT, GIVEN_UP, ARRIVED = range(4)  # kinds of rows, in the order in which they are read
# Of a partition that begins with a base: the numbers up to which a source had sent, and a target had taken in
SENT_BEFORE, ARRIVED_BEFORE = -2, -1
PASSED_OVER = -3  # numbers that a recovered source gives to no letter: the deaths that they had named are lost
SORTED_BY = ("vhost", "queue", "queue_id", "sequence", "kind", "partition", "offset")
_DIED_BEFORE = b"x-death"


class LetterRows:
    """The letters that one partition sends and gets. Arrivals and forwards behind offset `reach` do not count."""

    def __init__(self, partition: str, reach: int) -> None:
        self.partition = partition
        self.reach = reach
        self.rows: list[tuple[Any, ...]] = []
        self.count = 0
        self.under_way: dict[tuple[int, int], int] = {}  # (queue_id, message) -> number, until the outbox releases it

    def begin(self, queue: Queue, offset: int, now_ms: int) -> None:
        """Note what a queue had sent and taken in when the history begins, with a base."""
        number = (queue.vhost, queue.name, queue.queue_id, 0)
        self._row(number, SENT_BEFORE, offset, now_ms, queue.next_sequence - 1)
        for letter in queue.outbox.values():
            self.under_way[queue.queue_id, letter.message_id] = letter.sequence
        for (vhost, name, queue_id, source, relocated), sequence in queue.letters_seen.items():
            target, number = f"{queue.vhost}/{queue.name}", (vhost, name, queue_id, 0)
            reason = RELOCATED if relocated else None
            self._row(number, ARRIVED_BEFORE, offset, now_ms, sequence, reason, target, source=source)

    def sent(self, offset: int, now_ms: int, letters: DeadLetter, message_id: int, sequence: int) -> None:
        """Note a letter that a queue of this partition sends."""
        queue = letters.queue
        self.under_way[queue.queue_id, message_id] = sequence
        self._row(
            (queue.vhost, queue.name, queue.queue_id, sequence),
            SENT,
            offset,
            now_ms,
            message_id,
            letters.reason,
            None,
            letters.exchange,
            letters.routing_key,
        )

    def released(self, offset: int, now_ms: int, event: Event, effect: Release) -> None:
        """Note letters that leave an outbox: without a forward they are given up."""
        queue = effect.queue
        forwarded = isinstance(event, DeadLettersForwarded) and event.queue_id == queue.queue_id
        for message_id in effect.message_ids:
            sequence = self.under_way.pop((queue.queue_id, message_id), 0)
            if not forwarded:
                number = (queue.vhost, queue.name, queue.queue_id, sequence)
                self._row(number, GIVEN_UP, offset, now_ms, message_id)

    def forwarded(self, offset: int, now_ms: int, event: DeadLettersForwarded, last: int) -> None:
        """Note how far a queue's letters are forwarded, and the numbers behind `last` that it passes over."""
        if event.taken > last:
            number = (event.vhost, event.queue, event.queue_id, last + 1)
            self._row(number, PASSED_OVER, offset, now_ms, event.taken)
        if offset < self.reach:
            number = (event.vhost, event.queue, event.queue_id, 0)
            self._row(number, FORWARDED, offset, now_ms, event.sequence, RELOCATED if event.relocated else None)

    def arrived(self, offset: int, now_ms: int, event: Published, target: str) -> None:
        """Note a letter that a queue of this partition took in. `target`: that queue."""
        origin = event.origin
        if origin is not None and not origin.restore and offset < self.reach:
            number = (origin.vhost, origin.queue, origin.queue_id, origin.sequence)
            self._row(
                number, ARRIVED, offset, now_ms, origin.message_id, origin.reason, target, source=origin.partition
            )

    def _row(
        self,
        number: tuple[str, str, int, int],
        kind: int,
        offset: int,
        now_ms: int,
        message_id: int,
        reason: str | None = None,
        target: str | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
        source: int | None = None,
    ) -> None:
        self.count += 1
        self.rows.append(
            (*number, kind, self.partition, offset, now_ms, message_id, reason, target, exchange, routing_key, source)
        )

    def take(self) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of LETTERS since the last call."""
        if self.rows:
            rows, self.rows = self.rows, []
            yield batch_of(rows, columns.LETTERS)


Home = int  # of a source: its partition as `Origin` names it


def check_arrivals(
    rows: Iterable[Any],
    owed: Callable[[Any, set[str]], list[str]],
    gone: Callable[[str, str, int, Home], bool] = lambda vhost, queue, queue_id, home: False,
    home_of: Callable[[Any], Home] = lambda row: -1,
) -> Iterator[Finding]:
    """Yield what is wrong with `rows` of LETTERS, which come in the order SORTED_BY.

    `owed(sent, targets)`: where else a letter should have arrived that did arrive in `targets`. `gone(vhost, queue,
    queue id, home)`: whether a source without a base had been declared in a part that was trimmed. `home_of`: the home
    of a row's source: two queues of one name, in two partitions, may have the same id."""
    for (vhost, queue, queue_id), of_sources in groupby(rows, attrgetter("vhost", "queue", "queue_id")):
        sources: dict[Home, _Source] = {}
        for sequence, found in groupby(of_sources, attrgetter("sequence")):
            letters: dict[Home, list[Any]] = {}
            for row in found:
                letters.setdefault(home_of(row), []).append(row)
            for home, of_it in letters.items():
                if home not in sources:
                    trimmed = gone(vhost, queue, queue_id, home)
                    sources[home] = _Source(f"{vhost}/{queue}", trimmed, owed)
                yield from sources[home].check(sequence, of_it)


class _Source:
    """The queue that some letters come from. `trimmed`: it had been declared in a part that was trimmed."""

    def __init__(self, name: str, trimmed: bool, owed: Callable[[Any, set[str]], list[str]]) -> None:
        self.name = name
        self.trimmed = trimmed
        self.owed = owed
        self.forwarded_to = {True: 0, False: 0}  # by whether they moved with the queue
        self.sent_before = -1
        self.passed_over = -1  # the last of the newest numbers that were passed over
        self.arrived_before: dict[tuple[str, bool], int] = {}

    def check(self, sequence: int, letters: list[Any]) -> Iterator[Finding]:
        """Yield what is wrong with the rows under a number. The numbers ascend."""
        for row in letters:
            if row.kind == SENT_BEFORE:
                self.sent_before = row.message_id
            elif row.kind == PASSED_OVER:
                self.passed_over = row.message_id
            elif row.kind == ARRIVED_BEFORE:
                self.arrived_before[row.target, row.reason == RELOCATED] = row.message_id
            elif row.kind == FORWARDED:
                relocated = row.reason == RELOCATED
                self.forwarded_to[relocated] = max(self.forwarded_to[relocated], row.message_id)
        sent = next((row for row in letters if row.kind == SENT), None)
        arrived = [row for row in letters if row.kind == ARRIVED]
        for row in arrived:
            if sent is None and (sequence <= self.sent_before or (self.sent_before < 0 and self.trimmed)):
                continue  # it was sent in a part that was trimmed
            if sent is None and sequence <= self.passed_over:
                continue  # it was sent in a part that a recovery did not find
            if sent is None or (sent.message_id, sent.reason) != (row.message_id, row.reason):
                yield _never_sent(self.name, sent, row)
        if sent is None or any(row.kind == GIVEN_UP for row in letters):
            return
        relocated = sent.reason == RELOCATED
        if sequence <= self.forwarded_to[relocated]:
            before = self.arrived_before.items()
            earlier = {target for (target, kind), number in before if kind == relocated and sequence <= number}
            for target in self.owed(sent, earlier | {row.target for row in arrived}):
                detail = f"dead letter {sequence} was forwarded, and never arrived in {target}"
                yield Finding(ARRIVALS, False, sent.partition, sent.offset, self.name, sent.message_id, detail)


def _never_sent(source: str, sent: Any | None, row: Any) -> Finding:
    instead = "nothing" if sent is None else f"message {sent.message_id} ({sent.reason})"
    detail = (
        f"says it is dead letter {row.sequence} of {source}, message {row.message_id} ({row.reason}), but {instead} was"
        " sent under that number"
    )
    return Finding(ARRIVALS, False, row.partition, row.offset, row.target, row.offset, detail)


class Destinations:
    """Finds the queues in which letters should arrive.

    `queues`: existing queues, `vhost/name`, each with the time of its declaration. `bound_ms`: the time of each
    binding. `late_ms`: they count so much later (nodes that share a log learn of them one by one)."""

    def __init__(
        self,
        location: Location,
        topology: Topology,
        bound_ms: Mapping[Bound, int],
        queues: Mapping[str, int],
        late_ms: int,
    ) -> None:
        self._location = location
        self._topology = topology
        self._bound_ms = bound_ms
        self._queues = queues
        self._late_ms = late_ms

    def owed(self, sent: Any, arrived: set[str]) -> list[str]:
        """Return the queues, as `vhost/name`, in which a letter should have arrived and did not.

        `arrived`: the queues in which it arrived."""
        vhost, key = sent.vhost, sent.routing_key
        if sent.reason == RELOCATED:
            own = f"{vhost}/{sent.queue}"
            return [own] if own not in arrived and self._was_there(vhost, sent.queue, sent) else []
        exchange = self._topology.exchanges.get((vhost, sent.exchange))
        if exchange is None or exchange.type not in ("direct", "fanout") or (key is None and arrived):
            return []
        bindings = [each for each in self._topology.bindings_from(vhost, sent.exchange) if self._stood(each, sent)]
        if sent.exchange and not bindings:
            return []
        message = None
        if key is None:
            message = self._message(sent)
            key = message.route.routing_key
        names = [each.destination for each in bindings if exchange.type == "fanout" or each.routing_key == key]
        wanted = dict.fromkeys(names if sent.exchange else [key])
        missing = [name for name in wanted if f"{vhost}/{name}" not in arrived and self._was_there(vhost, name, sent)]
        if not missing:
            return []
        message = message or self._message(sent)
        if message.origin is not None or _DIED_BEFORE in message.properties:  # a cycle may drop it
            return []
        return [f"{vhost}/{name}" for name in missing if name != sent.queue]

    def _message(self, sent: Any) -> Published:
        return read_messages(self._location, sent.partition, [sent.message_id])[sent.message_id][2]

    def _was_there(self, vhost: str, name: str, sent: Any) -> bool:
        return self._before(self._queues.get(f"{vhost}/{name}"), sent)

    def _stood(self, bound: Bound, sent: Any) -> bool:
        return bound.destination_type == "queue" and self._before(self._bound_ms.get(bound), sent)

    def _before(self, since_ms: int | None, sent: Any) -> bool:
        died_ms: int = sent.time_ms
        return since_ms is not None and since_ms + self._late_ms < died_ms
