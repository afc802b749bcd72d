"""A queue partition as one would explain it at a blackboard: one list of messages a queue, linear scans, no index.

It is the judge of the real machine (test_machine_model.py): the same events in, the same outcomes out. It shares with
the real one only the event classes and the settings (arguments and policies are merged by rules/settings.py, which
has tests of its own). Outcomes are plain tuples; `explain` in test_machine_model.py turns effects into the same.
"""

from rewindmq.projections.machine.rules.policy_keys import is_queue_type
from rewindmq.projections.machine.rules.profile import profile_of
from rewindmq.projections.machine.rules.settings import QueueSettings, resolve
from rewindmq.schemas.amqp.properties import headers_of
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    ConsumerAttached,
    ConsumerCancelled,
    Credited,
    DeadLettersForwarded,
    Event,
    Fetched,
    GlobalPrefetchSet,
    MachineUpgraded,
    Nacked,
    NodeLost,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    QueueDrained,
    SessionClosed,
)
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused, QueueResumed
from rewindmq.schemas.values import Actor, Policy

Outcome = tuple[object, ...]


class Message:
    def __init__(
        self, message_id: int, size: int, persistent: bool, dies_at: int | None, place: tuple[int, ...]
    ) -> None:
        self.id = message_id
        self.size = size
        self.persistent = persistent
        self.dies_at = dies_at
        self.published_at = 0
        self.place = place  # the smallest is delivered first
        self.holder: Holder | None = None
        self.deliveries = 0  # how often it was delivered
        self.redelivered = False
        self.count = 0
        self.acquired = 0  # when it came from another partition
        self.due_at: int | None = None  # it waits until then
        self.same_as: tuple[str, object] | None = None  # its id


class Holder:
    def __init__(self, queue: "NaiveQueue", number: int, session: int, channel: int) -> None:
        self.queue = queue
        self.number = number
        self.session = session
        self.channel = channel
        self.event: ConsumerAttached | None = None  # None: basic.get, or cancelled
        self.limited = False  # by its channel's limit
        self.subscribed = False  # now, or before it was cancelled
        self.credit = 0
        self.prefetch = 0  # also when it was cancelled
        self.lookahead = 0  # how many it may hold beyond its prefetch
        self.turn: int | None = None  # when it came to the end of the round robin; None: not in it
        self.blocked_since: int | None = None
        self.came = 0


class NaiveQueue:
    def __init__(self, event: QueueDeclared, queue_id: int, settings: QueueSettings, version: int) -> None:
        self.event = event
        self.version = version
        self.id = queue_id
        self.settings = settings
        self.quorum = event.type == "quorum"
        self.stream = event.type == "stream"
        self.later = self.quorum and event.semantics == "rabbitmq-4.3"
        self.most = 4_095 if self.later else (1 << 28) - 1  # a delivery count goes no further
        self.delays = event.type == "delayed"
        self.made_at = 0
        self.messages: list[Message] = []
        self.holders: list[Holder] = []
        self.blocked = False
        self.used_at = 0
        # sequence, id, size, at least once, moved with the queue
        self.letters: list[tuple[int, int, int, bool, bool]] = []
        self.next_letter = 1
        self.declared_by = 0
        self.seen: dict[tuple[str, str, int, int, bool], int] = {}
        self.restored: set[tuple[str, str, str, int, int]] = set()
        self.active: Holder | None = None  # of a queue with a single active consumer
        self.giving_way = False  # it gets nothing more
        self.paused = False
        # By exchange: messages that came through it, their ids, and until when they are remembered.
        self.came_through: dict[str, list[tuple[int, tuple[str, object], int | None]]] = {}

    @property
    def serves(self) -> bool:
        """Return True unless the queue delivers nothing."""
        return not self.paused

    @property
    def once(self) -> bool:
        """Return True if the queue drops a message with the id of one that it already has."""
        return self.settings.deduplicates

    @property
    def single(self) -> bool:
        return self.argument("x-single-active-consumer") == 1 and not self.stream

    def argument(self, name: str) -> int | None:
        found = [argument.value for argument in self.event.arguments if argument.name == name]
        return int(found[0]) if found and isinstance(found[0], int) else None

    def ready(self) -> list[Message]:
        found = [m for m in self.messages if m.holder is None and m.due_at is None]
        return sorted(found, key=lambda m: m.place)

    def waiting(self) -> list[Message]:
        return sorted((m for m in self.messages if m.due_at is not None), key=lambda m: (m.due_at or 0, m.id))

    def heads(self) -> list[Message]:
        """The messages whose expiry is looked at.

        They are the next message; in profile 4.3 the first of each priority, and of the returned messages."""
        ready = self.ready()
        if not self.later:
            return ready[:1]
        return [m for n, m in enumerate(ready) if n == 0 or m.place[:2] != ready[n - 1].place[:2]]

    def held_by(self, holder: Holder) -> list[Message]:
        return sorted((m for m in self.messages if m.holder is holder), key=lambda m: m.deliveries)

    def consumers(self) -> list[Holder]:
        return [h for h in self.holders if h.event is not None]

    def counted(self) -> tuple[int, int]:
        ready = self.ready()
        sizes = [m.size for m in ready + self.waiting()] + [letter[2] for letter in self.letters if letter[3]]
        return len(sizes), sum(sizes)

    def over(self, extra: int | None = None) -> bool:
        messages, size = self.counted()
        if extra is not None:
            messages, size = messages + 1, size + extra
        s = self.settings
        return (s.max_length is not None and messages > s.max_length) or (
            s.max_length_bytes is not None and size > s.max_length_bytes
        )

    def relieved(self) -> bool:
        messages, size = self.counted()
        s = self.settings
        return (s.max_length is None or messages <= int(s.max_length * 0.8)) and (
            s.max_length_bytes is None or size <= int(s.max_length_bytes * 0.8)
        )

    def unused(self) -> bool:
        return not self.holders if self.quorum else not self.consumers()


def too_wide(event: MessageRemoved) -> bool:
    """Return True if the ranges of a removal make no sense: some run backwards, or all name over 1,000 messages."""
    widths = [last - first + 1 for first, last in event.messages]
    return sum(widths) > 1_000 or any(width < 1 for width in widths)


def priority_of(holder: Holder) -> int:
    assert holder.event is not None
    return holder.event.priority


class NaiveMachine:
    def __init__(self) -> None:
        self.clock = 0
        self.version = 1
        self.queues: list[NaiveQueue] = []
        self.gone: list[NaiveQueue] = []  # with letters left
        self.shared: dict[tuple[int, int], int] = {}  # (session, channel) -> limit
        self.lost: list[int] = []  # epochs of nodes
        self.ticket = 0
        self.out: list[Outcome] = []

    def next_ticket(self) -> int:
        self.ticket += 1
        return self.ticket

    def apply(self, offset: int, time: int, actor: Actor, event: Event) -> list[Outcome]:
        self.out = []
        self.pass_time(time)
        if actor.session and actor.session >> 24 in self.lost and not isinstance(event, Published):
            self.nonsense()
        else:
            getattr(self, type(event).__name__)(offset, actor, event)
        return self.out

    # -- time ----------------------------------------------------------------------------------------------------------

    def pass_time(self, time: int) -> None:
        while True:
            due: list[tuple[int, int, int]] = []
            for queue in self.queues:
                times = [m.dies_at for m in queue.heads()] + [m.due_at for m in queue.waiting()]
                due.extend((at, queue.id, 0) for at in times if at is not None)
                if queue.settings.expires_ms is not None and queue.unused():
                    due.append((queue.used_at + queue.settings.expires_ms, queue.id, 1))
            due = [d for d in due if d[0] <= time]
            if not due:
                break
            at, queue_id, kind = min(due)
            self.clock = max(self.clock, at)
            queue = next(q for q in self.queues if q.id == queue_id)
            if kind == 0:
                self.release_due(queue)
                self.expire(queue)
                if queue.later:
                    self.deliver(queue)
                self.limit(queue)
            else:
                self.delete(queue, "expired")
        self.clock = max(self.clock, time)

    def expire(self, queue: NaiveQueue) -> None:
        while True:
            dead = [m for m in queue.heads() if m.dies_at is not None and m.dies_at <= self.clock]
            if not dead:
                return
            self.die(queue, dead[:1], "expired", 0)

    def release_due(self, queue: NaiveQueue) -> None:
        name = queue.event.queue
        for message in queue.waiting():
            assert message.due_at is not None
            if message.due_at > self.clock:
                break
            if queue.delays:
                queue.messages.remove(message)
                self.out.append(("forget", name, message.id, "delayed", 0))
                queue.letters.append((queue.next_letter, message.id, message.size, False, False))
                self.out.append(("dead letter", name, message.id, "delayed", queue.next_letter))
                queue.next_letter += 1
                continue
            message.due_at = None
            message.place = (0, 0, self.next_ticket())
            self.out.append(("requeue", name, message.id, 0, "delayed"))

    # -- death ---------------------------------------------------------------------------------------------------------

    def die(self, queue: NaiveQueue, messages: list[Message], reason: str, consumer: int) -> None:
        for message in messages:
            queue.messages.remove(message)
            self.out.append(("forget", queue.event.queue, message.id, reason, consumer))
        for message in messages:
            self.bury(queue, message.id, message.size, reason)

    def bury(self, queue: NaiveQueue, message_id: int, size: int, reason: str) -> None:
        if queue.settings.dead_letter_exchange is None:
            return
        queue.letters.append((queue.next_letter, message_id, size, queue.settings.at_least_once, False))
        self.out.append(("dead letter", queue.event.queue, message_id, reason, queue.next_letter))
        queue.next_letter += 1

    def limit(self, queue: NaiveQueue) -> None:
        if queue.settings.overflow == "drop-head":
            queue.blocked = False
            self.drop(queue)
        elif queue.quorum:
            if queue.over():
                queue.blocked = True
            elif queue.relieved():
                queue.blocked = False

    def drop(self, queue: NaiveQueue) -> None:
        while len(queue.ready()) > (1 if queue.stream else 0) and queue.over():
            self.die(queue, queue.ready()[:1], "maxlen", 0)
        self.expire(queue)

    # -- delivery ------------------------------------------------------------------------------------------------------

    def of_channel(self, session: int, channel: int) -> list[Holder]:
        return [h for q in self.queues for h in q.holders if (h.session, h.channel) == (session, channel)]

    def limit_reached(self, session: int, channel: int) -> bool:
        limited = [h for h in self.of_channel(session, channel) if h.limited]
        return sum(len(h.queue.held_by(h)) for h in limited) >= self.shared[(session, channel)]

    def has_room(self, holder: Holder) -> bool:
        event = holder.event
        if event is None:
            return False
        if event.no_ack or event.prefetch == 0:
            return holder.credit > 0
        return len(holder.queue.held_by(holder)) < event.prefetch + holder.lookahead

    def line_up(self, holder: Holder) -> None:
        waits = holder.queue.single and (holder.queue.active is not holder or holder.queue.giving_way)
        if holder.turn is None and holder.blocked_since is None and self.has_room(holder) and not waits:
            holder.turn = self.next_ticket()

    def pick(self, queue: NaiveQueue) -> Holder | None:
        if not queue.serves:
            return None
        waiting = [h for h in queue.holders if h.turn is not None and h.event is not None]
        waiting.sort(key=lambda h: (-(h.event.priority if h.event else 0), h.turn))
        for holder in waiting:
            holder.turn = None
            if not self.has_room(holder):
                continue
            if not holder.limited or not self.limit_reached(holder.session, holder.channel):
                return holder
            holder.blocked_since = self.next_ticket()
        return None

    def deliver(self, queue: NaiveQueue) -> None:
        while True:
            self.expire(queue)
            if not queue.ready():
                return
            holder = self.pick(queue)
            if holder is None:
                return
            self.send(queue, queue.ready()[0], holder)

    def send(self, queue: NaiveQueue, message: Message, holder: Holder) -> None:
        assert holder.event is not None
        no_ack = holder.event.no_ack
        name, redelivered, count = queue.event.queue, message.redelivered, message.count
        self.out.append(("deliver", name, message.id, holder.number, redelivered, count, no_ack))
        if no_ack:
            queue.messages.remove(message)
        else:
            message.holder = holder
            message.deliveries = self.next_ticket()
        holder.credit -= 1
        if queue.quorum:
            self.line_up(holder)
        else:
            holder.turn = self.next_ticket()

    def run(self, queue: NaiveQueue) -> None:
        if queue.quorum:
            self.deliver(queue)
            self.limit(queue)
        else:
            self.limit(queue)
            self.deliver(queue)

    def unblock(self, session: int, channel: int) -> None:
        """Go on after deliveries under a channel's limit were settled, or the limit changed."""
        if (session, channel) in self.shared and self.limit_reached(session, channel):
            return
        blocked = [h for h in self.of_channel(session, channel) if h.blocked_since is not None]
        blocked.sort(key=lambda h: h.blocked_since or 0)
        if (session, channel) in self.shared:
            while blocked and not self.limit_reached(session, channel):
                first = min(blocked, key=lambda h: h.blocked_since or 0)
                first.blocked_since = None
                self.line_up(first)
                self.deliver(first.queue)
                self.limit(first.queue)
                blocked = [h for h in self.of_channel(session, channel) if h.blocked_since is not None]
            return
        queues: list[NaiveQueue] = []
        for holder in blocked:
            holder.blocked_since = None
            self.line_up(holder)
            if holder.queue not in queues:
                queues.append(holder.queue)
        for queue in queues:
            self.deliver(queue)
            self.limit(queue)

    # -- events --------------------------------------------------------------------------------------------------------

    def find(self, event: object) -> NaiveQueue | None:
        key = (getattr(event, "vhost", None), getattr(event, "queue", None))
        return next((q for q in self.queues if (q.event.vhost, q.event.queue) == key), None)

    def find_holder(self, event: object) -> tuple[NaiveQueue | None, Holder | None]:
        queue = self.find(event)
        if queue is None:
            return None, None
        number = getattr(event, "consumer", None)
        return queue, next((h for h in queue.holders if h.number == number), None)

    def nonsense(self) -> None:
        self.out.append(("quarantine",))

    def locked(self, queue: NaiveQueue, actor: Actor) -> bool:
        return queue.event.exclusive and actor.session != 0 and actor.session != queue.event.owner

    def in_exclusive_use(self, queue: NaiveQueue, event: ConsumerAttached) -> bool:
        if queue.single and event.exclusive:
            return True
        others = [h.event for h in queue.holders if h.event is not None]
        return not queue.stream and bool(others) and any(each.exclusive for each in [*others, event])

    def resolved(
        self, event: QueueDeclared, policy: Policy | None, operator_policy: Policy | None, version: int
    ) -> QueueSettings:
        assert is_queue_type(event.type)
        return resolve(event.type, event.arguments, policy, operator_policy, profile_of(event.semantics), version)

    def QueueDeclared(self, offset: int, actor: Actor, event: QueueDeclared) -> None:
        queue = self.find(event)
        if queue is None:
            moved = event.moved_from
            if moved is not None and not 1 <= moved.version <= self.version:
                self.nonsense()
                return
            version = self.version if moved is None else moved.version
            settings = self.resolved(event, event.policy, event.operator_policy, version)
            queue = NaiveQueue(event, offset, settings, version)
            if moved is not None:
                queue.paused = moved.paused
                for seen in moved.letters:
                    source = (seen.vhost, seen.queue, seen.queue_id, seen.partition, seen.relocated)
                    queue.seen[source] = seen.sequence
                for each in moved.restored:
                    of = (each.restore, each.vhost, each.queue, each.queue_id)
                    queue.restored |= {
                        (*of, number) for first, last in each.messages for number in range(first, last + 1)
                    }
            queue.declared_by = actor.session
            queue.made_at = self.clock
            self.queues.append(queue)
        elif self.locked(queue, actor):
            self.nonsense()
            return
        elif queue.quorum:
            return
        queue.used_at = self.clock

    def PolicyApplied(self, offset: int, actor: Actor, event: PolicyApplied) -> None:
        queue = self.find(event)
        if queue is None:
            return
        declared = queue.event
        dropping = not queue.quorum and queue.settings.overflow == "drop-head"
        queue.settings = self.resolved(declared, event.policy, event.operator_policy, queue.version)
        if not queue.once:
            for message in queue.messages:
                message.same_as = None
        if not queue.settings.at_least_once:
            self.release(queue, [letter for letter in queue.letters if letter[3]])
        queue.used_at = self.clock
        for message in queue.messages:
            if queue.stream:
                message.dies_at = self.cut_at(queue, message)
        if dropping:
            self.drop(queue)
        self.run(queue)

    def publish(self, queue: NaiveQueue, offset: int, event: Published) -> None:
        name = queue.event.queue
        along = event.origin is not None and event.origin.reason == "relocated"
        if event.origin is not None:
            origin = event.origin
            source = (origin.vhost, origin.queue, origin.queue_id, origin.partition, along)
            came = (origin.restore, *source[:3], origin.message_id)
            late = queue.seen.get(source, 0) >= origin.sequence
            if came in queue.restored if event.origin.restore else late:
                self.out.append(("duplicate", name, offset))
                return
        identity, own_ttl = self.identity(event)
        if identity is not None and not along:
            first = self.first_of(queue, event, identity)
            if first is not None:
                if event.origin is not None and not event.origin.restore:
                    queue.seen[source] = origin.sequence
                self.out.append(("duplicate", name, offset, first))
                return
        overflow = queue.settings.overflow
        refuses = queue.blocked if queue.quorum else overflow != "drop-head" and queue.over(event.body_size)
        if refuses and not along:
            self.out.append(("refuse", name, offset))
            if overflow == "reject-publish-dlx" and queue.settings.dead_letter_exchange is not None:
                self.out.append(("keep", name, offset))
                self.bury(queue, offset, event.body_size, "maxlen")
            return
        if event.origin is not None and event.origin.restore:
            queue.restored.add(came)
        elif event.origin is not None:
            queue.seen[source] = origin.sequence
        ttls = [ttl for ttl in (queue.settings.message_ttl_ms, event.expiration_ms) if ttl is not None]
        dies_at = None
        if ttls and not queue.stream:
            ttl = min(ttls)
            dies_at = self.clock + (1 if queue.quorum and ttl == 0 else ttl)
        if along:
            dies_at = None if event.expiration_ms is None else self.clock + event.expiration_ms
        level = 0
        highest = queue.argument("x-max-priority")
        if queue.event.type == "classic" and highest is not None:
            level = min(event.priority or 0, max(highest, 1))
        if queue.later:
            level = 4 if event.priority is None else min(event.priority, 31)
        place = (1, -level, self.next_ticket()) if queue.quorum else (-level, offset)
        message = Message(offset, event.body_size, event.persistent, dies_at, place)
        if identity is not None:
            message.same_as = identity if queue.once else None
            self.came_through(queue, offset, event, identity, own_ttl)
        if queue.delays:
            message.dies_at, message.due_at = None, self.clock + (event.expiration_ms or 0)
            queue.messages.append(message)
            self.out.append(("keep", name, offset))
            self.release_due(queue)
            return
        message.published_at = self.clock
        if queue.stream:
            message.dies_at = self.cut_at(queue, message)
        elif event.origin is not None and (event.origin.restore or along):
            message.redelivered = event.origin.redelivered
            if queue.quorum:
                message.count = min(event.origin.delivery_count, queue.most)
                message.acquired = min(event.origin.acquired_count, 2_047)
                if along and (message.count or message.acquired):
                    behind = queue.settings.delivery_limit is None and not queue.later
                    message.place = (1 if behind else 0, 0, self.next_ticket())
        had_some = bool(queue.ready())
        queue.messages.append(message)
        holder = None if had_some else self.pick(queue)
        if holder is not None:
            assert holder.event is not None
            if not holder.event.no_ack:
                self.out.append(("keep", name, offset))
            self.send(queue, message, holder)
            return
        self.out.append(("keep", name, offset))
        self.limit(queue)
        self.expire(queue)

    def identity(self, event: Published) -> tuple[tuple[str, object] | None, int | None]:
        """The message's id, with its type, and the time for which it wants to be remembered."""
        found: tuple[str, object] | None = None
        own_ttl = None
        for header, kind, value in headers_of(event.properties) if event.properties else []:
            integer = isinstance(value, int) and kind != "bool"
            if header == "x-cache-ttl" and isinstance(value, int) and integer:
                own_ttl = max(0, value)
            if header == "x-deduplication-header" and kind not in ("table", "array", "decimal"):
                plain = value.encode() if isinstance(value, str) else value  # for Erlang both are a binary
                text = kind in ("longstr", "binary")
                found = ("integer" if integer else "text" if text else kind, plain)
        return found, own_ttl

    def first_of(self, queue: NaiveQueue, event: Published, identity: tuple[str, object]) -> int | None:
        """The message that this one would double."""
        asked = event.route.duplicates
        if asked is not None:
            for message_id, known, until in reversed(queue.came_through.get(asked.exchange, [])):
                if known == identity and (until is None or until > self.clock):
                    return message_id
        for message in sorted(queue.messages, key=lambda m: -m.id):
            alive = message.dies_at is None or message.dies_at > self.clock
            if queue.once and message.same_as == identity and alive:
                return message.id
        return None

    def came_through(
        self, queue: NaiveQueue, offset: int, event: Published, identity: tuple[str, object], own_ttl: int | None
    ) -> None:
        asked = event.route.duplicates
        if asked is None:
            return
        ttl = asked.ttl_ms if own_ttl is None else own_ttl
        window = queue.came_through.setdefault(asked.exchange, [])
        window.append((offset, identity, None if ttl is None else self.clock + max(0, ttl)))
        del window[: max(0, len(window) - max(1, asked.size))]

    def Published(self, offset: int, actor: Actor, event: Published) -> None:
        targets: list[NaiveQueue] = []
        for name in event.route.queues:
            found = [q for q in self.queues if (q.event.vhost, q.event.queue) == (event.route.vhost, name)]
            if not found:
                self.nonsense()
            targets.extend(found)
        for queue in targets:
            self.publish(queue, offset, event)

    def cut_at(self, queue: NaiveQueue, message: Message) -> int | None:
        """The time at which a stream's message is too old.

        It is too old when max-age has passed since the end of the second of its publishing."""
        age = queue.settings.max_age_ms
        seconds = (message.published_at - queue.made_at) // 1000
        return None if age is None else queue.made_at + seconds * 1000 + 1000 + age

    def Acked(self, offset: int, actor: Actor, event: Acked) -> None:
        queue, holder = self.find_holder(event)
        if queue is None or holder is None or queue.stream:
            self.nonsense()
            return
        for first, last in event.messages:
            found = sorted((m for m in queue.held_by(holder) if first <= m.id <= last), key=lambda m: m.id)
            if len(found) != last - first + 1:
                self.nonsense()
            for message in found:
                queue.messages.remove(message)
                self.out.append(("forget", queue.event.queue, message.id, "acked", holder.number))
        self.let_go(queue, holder)
        if queue in self.queues and queue.ready():
            self.deliver(queue)
            self.limit(queue)

    def let_go(self, queue: NaiveQueue, holder: Holder) -> None:
        if holder is queue.active:
            self.give_way(queue)
        self.line_up(holder)
        if holder.event is None and not queue.held_by(holder):
            queue.holders.remove(holder)
            if queue.quorum:
                queue.used_at = self.clock
        if holder.limited:
            self.unblock(holder.session, holder.channel)

    def Nacked(self, offset: int, actor: Actor, event: Nacked) -> None:
        queue, holder = self.find_holder(event)
        if queue is None or holder is None:
            self.nonsense()
            return
        found: list[Message] = []
        for first, last in event.messages:
            some = [m for m in queue.held_by(holder) if first <= m.id <= last]
            if len(some) != last - first + 1:
                self.nonsense()
            found.extend(some)
        if not found:
            return
        found.sort(key=lambda m: m.deliveries)
        if event.requeue:
            self.give_back(queue, holder, found, True, event.method)
        else:
            if not queue.quorum:
                found.sort(key=lambda m: m.place[0])  # the highest priority first
            self.die(queue, found, "rejected", holder.number)
        self.let_go(queue, holder)
        self.run(queue)

    def give_back(self, queue: NaiveQueue, holder: Holder, found: list[Message], asked: bool, reason: str) -> None:
        limit = queue.settings.delivery_limit
        failed = reason in ("reject", "session_closed", "channel_closed", "broker_started")
        back: list[Message] = []
        dead: list[Message] = []
        for message in found:
            message.redelivered = True
            if queue.quorum:
                message.count = min(message.count + (failed or not queue.later), queue.most)
                behind = asked and limit is None and not queue.later
                message.place = (1 if behind else 0, 0, self.next_ticket())
                if limit is not None and (message.count > limit or (queue.later and message.count == queue.most)):
                    dead.append(message)
                    continue
                retry = queue.settings
                if retry.retry in ("all", "failed" if failed else "returned"):
                    message.holder = None
                    message.due_at = self.clock + min(retry.retry_min_ms * max(1, message.count), retry.retry_max_ms)
                    self.out.append(("delay", queue.event.queue, message.id, holder.number, reason, message.due_at))
                    continue
            message.holder = None
            back.append(message)
        for message in back:
            self.out.append(("requeue", queue.event.queue, message.id, holder.number, reason))
        self.die(queue, dead, "delivery_limit", holder.number)

    def Credited(self, offset: int, actor: Actor, event: Credited) -> None:
        queue, holder = self.find_holder(event)
        if queue is None or holder is None or queue.stream:
            self.nonsense()
            return
        if holder.prefetch:
            self.change_lookahead(queue, holder, event.credit)
            return
        if holder.event is None or holder.prefetch or event.credit < 0:
            self.nonsense()
            return
        holder.credit += event.credit
        self.line_up(holder)
        if queue.ready():
            self.deliver(queue)
            self.limit(queue)

    def change_lookahead(self, queue: NaiveQueue, holder: Holder, credit: int) -> None:
        ranked = queue.later or queue.argument("x-max-priority") is not None
        if credit >= 0:
            if holder.event is None:
                self.nonsense()
                return
            alone = len(queue.consumers()) == 1
            barred = holder.limited or ranked or queue.single or not queue.serves
            self.lookahead(holder, credit if alone and not barred else 0)
            self.line_up(holder)
            if queue.ready():
                self.deliver(queue)
                self.limit(queue)
            return
        held = queue.held_by(holder)
        first = next((n for n, m in enumerate(held) if m.id == -1 - credit), None)
        if first is None or ranked:
            self.nonsense()
            return
        for message in reversed(held[first:]):
            message.holder = None
            if queue.quorum:
                message.place = (1, 0, -self.next_ticket())
        for message in held[first:]:
            self.out.append(("requeue", queue.event.queue, message.id, holder.number, "unsent"))
        self.lookahead(holder, 0)
        self.let_go(queue, holder)
        self.run(queue)

    def lookahead(self, holder: Holder, lookahead: int) -> None:
        """A consumer of a quorum queue that has no room any more leaves the line at once."""
        holder.lookahead = lookahead
        if holder.queue.quorum and not self.has_room(holder):
            holder.turn = holder.blocked_since = None

    def ConsumerAttached(self, offset: int, actor: Actor, event: ConsumerAttached) -> None:
        queue, holder = self.find_holder(event)
        if queue is None or holder is not None or self.locked(queue, actor) or self.in_exclusive_use(queue, event):
            self.nonsense()
            return
        holder = Holder(queue, event.consumer, actor.session, event.channel)
        holder.event = event
        holder.prefetch = 0 if event.no_ack else event.prefetch
        holder.credit = event.credit
        holder.subscribed = True
        if event.global_prefetch:
            holder.limited = True
            self.shared[(actor.session, event.channel)] = event.global_prefetch
            self.unblock(actor.session, event.channel)
        queue.holders.append(holder)
        for other in queue.holders:
            if other.lookahead:
                self.lookahead(other, 0)
        if queue.stream:
            return  # it reads for itself
        queue.active = queue.active or holder
        self.give_way(queue)
        self.line_up(holder)
        if queue.ready():
            self.deliver(queue)
            self.limit(queue)

    def GlobalPrefetchSet(self, offset: int, actor: Actor, event: GlobalPrefetchSet) -> None:
        channel = (event.session, event.channel)
        for holder in self.of_channel(*channel):
            if event.prefetch and holder.subscribed and not (holder.queue.quorum or holder.queue.stream):
                holder.limited = True
                if holder.lookahead:
                    self.lookahead(holder, 0)
            elif not event.prefetch:
                holder.limited = False
        if event.prefetch:
            self.shared[channel] = event.prefetch
        else:
            self.shared.pop(channel, None)
        self.unblock(*channel)

    def ConsumerCancelled(self, offset: int, actor: Actor, event: ConsumerCancelled) -> None:
        queue, holder = self.find_holder(event)
        if queue is None or holder is None or holder.event is None:
            self.nonsense()
            return
        self.detach(holder)
        if not queue.held_by(holder):
            queue.holders.remove(holder)
        self.after_leaving(queue)
        if queue.single and queue in self.queues and queue.ready():
            self.deliver(queue)
            self.limit(queue)

    def detach(self, holder: Holder) -> None:
        holder.event = None
        holder.lookahead = 0
        holder.turn = None
        holder.blocked_since = None
        queue = holder.queue
        if queue.active is holder:
            self.activate(queue)

    def activate(self, queue: NaiveQueue) -> None:
        """Make the best of all consumers active."""
        queue.giving_way = False
        ranked = queue.consumers()  # in the order in which they came
        if queue.later:
            ranked.sort(key=lambda h: h.event.prefetch or 2_000 if h.event else 0, reverse=True)
        if queue.later or not queue.quorum:
            ranked.sort(key=priority_of, reverse=True)
        queue.active = ranked[0] if ranked else None
        if queue.active is not None:
            self.line_up(queue.active)

    def give_way(self, queue: NaiveQueue) -> None:
        active = queue.active
        if active is None or not queue.single or not queue.later:
            return
        if any(priority_of(other) > priority_of(active) for other in queue.consumers()):
            queue.giving_way = True
            active.turn = active.blocked_since = None
        if queue.giving_way and not queue.held_by(active):
            self.activate(queue)

    def after_leaving(self, queue: NaiveQueue) -> None:
        if not queue.consumers():
            queue.used_at = self.clock
            if queue.event.auto_delete:
                self.delete(queue, "auto_delete")

    def Fetched(self, offset: int, actor: Actor, event: Fetched) -> None:
        queue, holder = self.find_holder(event)
        taken = holder is not None and holder.event is not None
        unfit = queue is not None and (queue.stream or (queue.single and queue.quorum))
        if queue is None or self.locked(queue, actor) or unfit or taken:
            self.nonsense()
            return
        queue.used_at = self.clock
        self.expire(queue)
        ready = queue.ready()
        if not ready or not queue.serves:
            self.out.append(("get", queue.event.queue, -1, event.consumer, False, 0, 0))
            return
        message = ready[0]
        if event.no_ack:
            queue.messages.remove(message)
        else:
            if holder is None:
                holder = Holder(queue, event.consumer, actor.session, event.channel)
                queue.holders.append(holder)
            message.holder = holder
            message.deliveries = self.next_ticket()
        answered = len(self.out)
        self.expire(queue)
        self.out.insert(
            answered,
            (
                "get",
                queue.event.queue,
                message.id,
                event.consumer,
                message.redelivered,
                message.count,
                len(queue.ready()),
            ),
        )
        self.limit(queue)

    def Purged(self, offset: int, actor: Actor, event: Purged) -> None:
        queue = self.find(event)
        if queue is None or self.locked(queue, actor) or queue.stream:
            self.nonsense()
            return
        for message in queue.ready() + queue.waiting():
            queue.messages.remove(message)
            self.out.append(("forget", event.queue, message.id, "purged", 0))
        self.limit(queue)

    def MessageRemoved(self, offset: int, actor: Actor, event: MessageRemoved) -> None:
        queue = self.find(event)
        if queue is None or self.locked(queue, actor) or queue.stream or too_wide(event):
            self.nonsense()
            return
        there = queue.ready() + queue.waiting()
        taken = [m for m in there if any(first <= m.id <= last for first, last in event.messages)]
        for message in taken:
            queue.messages.remove(message)
            self.out.append(("forget", event.queue, message.id, "moved" if event.moved else "removed", 0))
        for message in taken if event.moved else []:
            queue.letters.append((queue.next_letter, message.id, message.size, False, False))
            self.out.append(("dead letter", event.queue, message.id, "moved", queue.next_letter))
            queue.next_letter += 1
        if taken:
            self.expire(queue)
            self.limit(queue)

    def QueueDrained(self, offset: int, actor: Actor, event: QueueDrained) -> None:
        queue = self.find(event)
        if not 1 <= event.count <= 1_000:
            self.nonsense()
            return
        if queue is None or queue.id != event.queue_id:
            return
        if self.locked(queue, actor) or queue.stream or queue.delays:
            self.nonsense()
            return
        leaving = (queue.ready() + queue.waiting())[: event.count]
        for message in leaving:
            queue.messages.remove(message)
            self.out.append(("forget", event.queue, message.id, "relocated", 0))
        for message in leaving:
            queue.letters.append((queue.next_letter, message.id, message.size, False, True))
            kept = (message.redelivered, message.count, message.dies_at)
            self.out.append(("dead letter", event.queue, message.id, "relocated", queue.next_letter, *kept))
            queue.next_letter += 1
        if leaving:
            self.expire(queue)
            self.limit(queue)

    def QueuePaused(self, offset: int, actor: Actor, event: QueuePaused) -> None:
        queue = self.find(event)
        if queue is None or self.locked(queue, actor):
            self.nonsense()
        elif not queue.paused:
            queue.paused = True
            for holder in queue.holders:
                if holder.lookahead:
                    self.lookahead(holder, 0)

    def QueueResumed(self, offset: int, actor: Actor, event: QueueResumed) -> None:
        queue = self.find(event)
        if queue is None or self.locked(queue, actor):
            self.nonsense()
        elif queue.paused:
            queue.paused = False
            if queue.ready() and not queue.stream:
                self.deliver(queue)
                self.limit(queue)

    def QueueDeleted(self, offset: int, actor: Actor, event: QueueDeleted) -> None:
        queue = self.find(event)
        if queue is None or self.locked(queue, actor):
            self.nonsense()
        elif not (event.if_unused and queue.consumers()) and not (event.if_empty and queue.ready()):
            self.delete(queue, "deleted")

    def delete(self, queue: NaiveQueue, reason: str) -> None:
        ready = queue.ready()
        for message in ready + queue.waiting():
            self.out.append(("forget", queue.event.queue, message.id, "deleted", 0))
        queue.messages = [m for m in queue.messages if m.holder is not None]
        freed: list[Holder] = []
        for holder in queue.holders:
            if holder.event is not None:
                self.out.append(("cancel", queue.event.queue, holder.number))
            for message in queue.held_by(holder):
                self.out.append(("forget", queue.event.queue, message.id, "deleted", holder.number))
                freed.append(holder)
        self.out.append(("gone", queue.event.queue, reason, len(ready)))
        self.queues.remove(queue)
        if queue.letters:
            self.gone.append(queue)
        done: list[Holder] = []
        for holder in freed:
            if holder not in done:
                done.append(holder)
                if holder.limited:
                    self.unblock(holder.session, holder.channel)

    def SessionClosed(self, offset: int, actor: Actor, event: SessionClosed) -> None:
        reason = "channel_closed" if event.channel else "session_closed"
        channels = [] if event.channel == 0 else [event.channel]
        self.leave([event.session], channels, reason)
        if event.channel == 0:
            self.delete_owned(event.session)

    def NodeLost(self, offset: int, actor: Actor, event: NodeLost) -> None:
        self.lost.append(event.epoch)
        sessions = {h.session for q in self.queues for h in q.holders} | {q.event.owner for q in self.queues}
        ended = sorted(session for session in sessions if session and session >> 24 == event.epoch)
        self.leave(ended, [], "node_lost")
        for session in ended:
            self.delete_owned(session)
        for queue in list(self.queues):
            transient = not queue.event.durable and not queue.event.exclusive
            if transient and queue.declared_by and queue.declared_by >> 24 == event.epoch:
                self.delete(queue, "transient")

    def delete_owned(self, session: int) -> None:
        for queue in list(self.queues):
            if queue.event.exclusive and queue.event.owner == session:
                self.delete(queue, "exclusive_owner_gone")

    def leave(self, sessions: list[int], channels: list[int], reason: str) -> None:
        """Remove the holders of these sessions, session by session (only those of the channels, if any are named)."""
        freed: list[Holder] = []
        for queue in list(self.queues):
            leaving = [
                h
                for session in sessions
                for h in queue.holders
                if h.session == session and (not channels or h.channel in channels)
            ]
            if not leaving:
                continue
            was_consumer = any(h.event is not None for h in leaving)
            for holder in leaving:
                self.detach(holder)
                found = queue.held_by(holder)
                if found:
                    freed.append(holder)
                self.give_back(
                    queue, holder, found if queue.quorum else sorted(found, key=lambda m: m.id), False, reason
                )
                queue.holders.remove(holder)
            if was_consumer:
                self.after_leaving(queue)
            elif queue.quorum:
                queue.used_at = self.clock
            if queue in self.queues:
                self.run(queue)
        for holder in freed:
            if holder.limited:
                self.unblock(holder.session, holder.channel)

    def BrokerStarted(self, offset: int, actor: Actor, event: BrokerStarted) -> None:
        for queue in list(self.queues):
            for holder in list(queue.holders):
                self.detach(holder)
                found = queue.held_by(holder)
                self.give_back(
                    queue,
                    holder,
                    found if queue.quorum else sorted(found, key=lambda m: m.id),
                    False,
                    "broker_started",
                )
                queue.holders.remove(holder)
            if queue.event.exclusive:
                self.delete(queue, "exclusive_owner_gone")
            elif not queue.event.durable:
                self.delete(queue, "transient")
            else:
                queue.used_at = self.clock
                for message in queue.messages:
                    message.redelivered = message.redelivered or (event.after_crash and not queue.stream)
                if not (queue.quorum or queue.stream):
                    for message in [m for m in queue.ready() if not m.persistent]:
                        queue.messages.remove(message)
                        self.out.append(("forget", queue.event.queue, message.id, "transient", 0))
                self.run(queue)

    def DeadLettersForwarded(self, offset: int, actor: Actor, event: DeadLettersForwarded) -> None:
        queue = next((q for q in self.queues + self.gone if q.id == event.queue_id), None)
        if queue is None or queue.event.queue != event.queue:
            self.nonsense()
            return
        if event.taken >= queue.next_letter:
            queue.next_letter = event.taken + 1
        done = [letter for letter in queue.letters if letter[0] <= event.sequence and letter[4] == event.relocated]
        self.release(queue, done)
        if queue in self.gone:
            if not queue.letters:
                self.gone.remove(queue)
        else:
            self.limit(queue)

    def release(self, queue: NaiveQueue, letters: list[tuple[int, int, int, bool, bool]]) -> None:
        for letter in letters:
            queue.letters.remove(letter)
            self.out.append(("release", queue.event.queue, letter[1]))

    def Tick(self, offset: int, actor: Actor, event: Event) -> None:
        pass

    def MachineUpgraded(self, offset: int, actor: Actor, event: MachineUpgraded) -> None:
        self.version = max(self.version, event.machine_version)

    Checkpointed = CheckpointAsked = Tick
