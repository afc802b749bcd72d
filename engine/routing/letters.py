"""Dead letters that wait to be forwarded, by the queue that sends them (dead_letters.py)."""

from collections import deque
from typing import Final

from rewindmq.engine.routing.portions import Search
from rewindmq.engine.routing.router import Destination
from rewindmq.engine.runtime.partition import Partition
from rewindmq.projections.machine.data.queue import Carried, Queue
from rewindmq.schemas.events import Published

RETRY_FIRST_MS: Final = 1_000  # between two tries; doubled while nothing gets through


class Letter:
    """A dead letter to forward.

    `message` None: the projector has it. `taken_by`: targets that already have it. `logged_below`: the death is in the
    source's log below this append position. `heard`: see runtime/certainty.py. `carried`: of a message that moves with
    its queue: what it keeps."""

    def __init__(
        self,
        message_id: int,
        reason: str,
        sequence: int,
        exchange: str,
        routing_key: str | None,
        at_least_once: bool,
        message: Published | None,
        logged_below: int,
        heard: int,
        carried: Carried | None,
    ) -> None:
        self.message_id = message_id
        self.reason = reason
        self.sequence = sequence
        self.exchange = exchange
        self.routing_key = routing_key
        self.at_least_once = at_least_once
        self.message = message
        self.logged_below = logged_below
        self.heard = heard
        self.carried = carried
        self.taken_by: dict[str, None] = {}
        self.sent: list[tuple[Partition, int]] = []  # where, and at which append position
        # at-least-once: where, at which append position, and the queues that have to take it
        self.asked: list[tuple[Partition, int, list[str]]] = []
        self.refused = False  # by one of those asked
        self.waits_for_room = False  # on the disk
        self.goes_back = False  # a moved message that nobody took: the next try is its own queue
        self.search: Search[tuple[Destination, ...]] | None = None  # of its route, if that takes long
        self.found: tuple[Destination, ...] | None = None  # by that search, for the next try

    def give_up(self) -> None:
        """Tell the partitions that their answers are not needed."""
        for partition, position, _ in self.asked:
            partition.disregard(position)
        self.asked.clear()


class Source:
    """A queue that has dead letters. `relocated`: these are messages that move with it, and no others."""

    def __init__(self, partition: Partition, queue: Queue, relocated: bool) -> None:
        self.partition = partition
        self.queue = queue
        self.relocated = relocated
        self.letters: deque[Letter] = deque()
        # sequence, what must be durable, whether it counts as confirmed at-least-once
        self.in_flight: deque[tuple[int, list[tuple[Partition, int]], bool]] = deque()
        self.known_sequence = 0  # the highest that came in
        self.scheduled = False
        self.unsure = False  # whether its first letter has no route, or its targets are in partitions that are paused
        self.paused: tuple[Partition, ...] = ()  # these partitions
        self.held: tuple[str, str] | None = None  # the queue that its first letter waits for
        self.retry_at_ms: int | None = None
        self.retry_delay_ms = RETRY_FIRST_MS

    @property
    def may_send(self) -> bool:
        """Whether there is a letter whose death no crash can undo."""
        return bool(self.letters) and self.letters[0].logged_below <= self.partition.durable_position
