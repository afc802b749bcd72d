"""Messages that no queue took, routed again by the bindings of today: the undo of a forgotten binding.

    plans = await past.ask(LostMessages(history, "/", "orders", None, since_ms, None), user)         # in a worker
    done = await reroute(restorations, router, past, history, plans, user, session)                  # in the broker

Each message comes back as restorations.py brings messages back, once into each queue that takes it now. All these
restorations share one name, so a message that a queue has had never comes into it twice. A message that still reaches
no queue stays where it is, and makes no event.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from rewindmq.engine.keeping.location import HistoryPartition, Location, retry_if_trimmed
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.rewind.restorations import Restorations, as_restored, pages
from rewindmq.engine.rewind.restore_plan import NO_INCARNATION, Bodies, NoPlan, Plan, RestoredMessage
from rewindmq.engine.rewind.search import partitions_of, records_between, whole
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.engine.routing.content import readable
from rewindmq.engine.routing.portions import in_turns
from rewindmq.engine.routing.router import Router
from rewindmq.projections.history.search import Criteria
from rewindmq.projections.replay import decoder_for
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.schemas.amqp.properties import carbon_copies, parse
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published

NAME: Final = "unrouted"  # of all these restorations


@dataclass(frozen=True, slots=True)
class LostMessages:
    """A question to a worker: which messages to an exchange did no queue take? `routing_key` None: with any key. Times
    are inclusive; `until_ms` None: until now."""

    history: Location
    vhost: str
    exchange: str
    routing_key: str | None
    since_ms: int
    until_ms: int | None

    def answer(self) -> list[Plan] | NoPlan:
        """Make a plan for each partition, in the worker."""
        try:
            return retry_if_trimmed(self._plans)
        except NoAnswer as error:
            return NoPlan(str(error), False, True)
        except LogError as error:
            return NoPlan(str(error), False)

    def _plans(self) -> list[Plan]:
        reader = self.history.open()
        criteria = Criteria(self.vhost, unrouted=True)
        ranges = whole(reader, criteria, 0, self.since_ms, self.until_ms)
        logs = [log for log in partitions_of(reader, criteria) if log.name in ranges]
        return [self._plan(log, criteria, *ranges[log.name]) for log in logs]

    def _plan(self, log: HistoryPartition, criteria: Criteria, first: int, end: int) -> Plan:
        decode, needles = decoder_for(log).decode, criteria.needles()
        messages = []
        start = log.start_offset
        for part in ((first, min(end, start)), (max(first, start), end)):  # of the base, and of the log
            for offset, time_ms, record in records_between(log, *part):
                if not all(needle in record for needle in needles):
                    continue
                try:
                    envelope_ms, _, event = decode(record, False)
                except UndecodableRecord:
                    continue
                if type(event) is not Published or not criteria.match(event) or not self._wants(event):
                    continue
                if (envelope_ms if time_ms is None else time_ms) >= self.since_ms:
                    messages.append(RestoredMessage(offset, event.body_size, 0, False, event.expiration_ms))
        return Plan(
            self.vhost,
            "",
            NO_INCARNATION,
            log.name,
            end,
            0,
            None,
            tuple(messages),
            {},
            home=number_of(log.name),
        )

    def _wants(self, event: Published) -> bool:
        route = event.route
        return route.exchange == self.exchange and self.routing_key in (None, route.routing_key)


@dataclass(slots=True)
class Rerouted:
    """Numbers of messages by outcome (also `nowhere`), and by routing key and the queues that it leads to now."""

    came: Counter[str]
    routes: Counter[tuple[str, tuple[str, ...]]]


async def reroute(
    restorations: Restorations,
    router: Router,
    past: WorkerPool,
    history: Location,
    plans: list[Plan],
    user: str,
    session: Session | None,
) -> Rerouted:
    """Route the messages of the plans again. `session` None: only find out where they would go.

    Raises as `Restorations.restore`."""
    done = Rerouted(Counter(), Counter())
    for plan in plans:
        for number, page in pages(plan.messages):
            ids = tuple(each.message_id for each in page)
            bodies = await past.ask(Bodies(history, plan.partition, ids), user)
            if isinstance(bodies, NoAnswer):
                raise bodies
            if session is not None:
                await restorations.room(sum(each.size for each in page))
            for_queue: dict[str, list[tuple[int, Published]]] = defaultdict(list)
            outcomes: dict[int, set[str]] = {each: set() for each in ids}
            for at, each in enumerate(page, number):
                published = bodies[each.message_id]
                queues = await queues_now(router, published[1])
                done.routes[published[1].route.routing_key, queues] += 1
                for queue in queues:
                    event = as_restored(plan, each, *published, plan.vhost, queue, NAME, at)
                    for_queue[queue].append((each.message_id, event))
            if session is None:
                continue
            for queue, events in for_queue.items():
                came = await restorations.publish(session, queue, [event for _, event in events])
                for (message_id, _), outcome in zip(events, came, strict=True):
                    outcomes[message_id].add(outcome)
            restorations.check_open(session)  # else they may not be in the queues
            for met in outcomes.values():
                done.came[next((each for each in ("restored", "refused", "duplicate") if each in met), "nowhere")] += 1
    return done


async def queues_now(router: Router, published: Published) -> tuple[str, ...]:
    """Return the queues that a publish reaches by the bindings of today. A delay that it asked for is over."""
    route, properties = published.route, parse(published.properties)
    keys = (route.routing_key, *(carbon_copies(properties) if properties.sender_selected else ()))
    content = readable(published.properties)
    content.delay_ms = None
    search = router.search_by_keys(route.vhost, route.exchange, keys, content)
    found = await in_turns(search, router.share, lambda: True) or ()
    return tuple(queue for to in found for queue in to.route.queues)
