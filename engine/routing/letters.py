"""Dead letters that wait to be forwarded, by the queue that sends them (dead_letters.py)."""

from collections import deque
from typing import Final

from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing.portions import Search
from rewindmq.engine.routing.router import Destination
from rewindmq.projections.machine.data.effects import DeadLetter
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import MOVED
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import UnroutedLetter

RETRY_FIRST_MS: Final = 1_000  # between two tries; doubled while nothing gets through


class Letters:
    """Letters that are alike, and were made at once. Those before index `next` were sent.

    `logged_below`: their deaths are in the log below this append position. `heard`: see partition/certainty.py."""

    def __init__(self, effect: DeadLetter, logged_below: int, heard: int) -> None:
        self.effect = effect
        self.logged_below = logged_below
        self.heard = heard
        self.next = 0

    @property
    def last_sequence(self) -> int:
        """The number of the last letter."""
        return self.effect.sequence + len(self.effect.message_ids) - 1


class Letter:
    """A dead letter to forward, the first of a source.

    `message` None: it is not read yet. `taken_by`: targets that already have it. `carried`: of a message that moves
    with its queue: what it keeps."""

    def __init__(self, letters: Letters) -> None:
        effect, at = letters.effect, letters.next
        self.message_id = effect.message_ids[at]
        self.reason = effect.reason
        self.sequence = effect.sequence + at
        self.exchange = effect.exchange
        self.routing_key = effect.routing_key
        self.at_least_once = effect.at_least_once or effect.reason == MOVED
        self.heard = letters.heard
        self.carried: Carried | None = effect.carried[at] if effect.carried else None
        self.message: Published | None = None
        self.taken_by: dict[str, None] = {}
        self.sent: list[tuple[Partition, int]] = []  # where, and at which append position
        # at-least-once: where, at which append position, and the queues that have to take it
        self.asked: list[tuple[Partition, int, list[str]]] = []
        self.refused = False  # by one of those asked
        self.waits_for_room = False  # on the disk
        self.goes_back = False  # a moved message that nobody took: the next try is its own queue
        self.search: Search[tuple[Destination, ...]] | None = None  # of its route, if that takes long
        self.found: tuple[Destination, ...] | None = None  # by that search, for the next try

    def unrouted(self) -> UnroutedLetter | None:
        """Return the letter if it is done and was sent to no queue."""
        if self.message is None or self.sent or self.taken_by or self.carried is not None or self.reason == MOVED:
            return None
        return UnroutedLetter(self.message_id, self.message.body_size)

    def give_up(self) -> None:
        """Tell the partitions that their answers are not needed."""
        for partition, position, _ in self.asked:
            partition.disregard(position)
        self.asked.clear()


class LetterSource:
    """A queue that has dead letters. `relocated`: these are messages that move with it, and no others."""

    def __init__(self, partition: Partition, queue: Queue, relocated: bool) -> None:
        self.partition = partition
        self.queue = queue
        self.relocated = relocated
        self.letters: deque[Letters] = deque()
        self.first: Letter | None = None  # the letter that is sent next, once it is looked at
        # sequence, what must be durable, whether it counts as confirmed at-least-once
        self.in_flight: deque[tuple[int, list[tuple[Partition, int]], bool]] = deque()
        self.unrouted: list[tuple[int, UnroutedLetter]] = []  # done, and not in the log yet; with their sequences
        self.known_sequence = 0  # the highest that came in
        self.scheduled = False
        self.unsure = False  # whether its first letter has no route, or its targets are in partitions that are paused
        self.paused: tuple[Partition, ...] = ()  # these partitions
        self.held: tuple[str, str] | None = None  # the queue that its first letter waits for
        self.retry_at_ms: int | None = None
        self.retry_delay_ms = RETRY_FIRST_MS

    @property
    def may_send(self) -> bool:
        """Return True if there is a letter whose death no crash can undo."""
        return bool(self.letters) and self.letters[0].logged_below <= self.partition.durable_position

    def next_letter(self) -> Letter:
        """Return the first letter. There must be one."""
        if self.first is None:
            self.first = Letter(self.letters[0])
        return self.first

    def drop_first(self) -> None:
        """Drop the first letter: it was sent, or nobody waits for it any longer."""
        letters = self.letters[0]
        letters.next += 1
        if letters.next == len(letters.effect.message_ids):
            self.letters.popleft()
        if self.first is not None:
            self.first.give_up()
            self.first = None
