"""More scenarios of messages that die: chains, cycles, headers, letters that find no target, limits of both kinds. See
scenarios.py and scenarios_dying.py."""

import time
from collections.abc import Callable
from typing import Any

import pika

from tests.clients.peer import QUORUM, Peer
from tests.clients.scenarios_dying import death_headers, published_with_confirms

AT_LEAST_ONCE = {**QUORUM, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def to(target: str, exchange: str = "") -> dict[str, Any]:
    return {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": target}


def rejected(peer: Peer, queue: str, requeue: bool = False) -> None:
    got = peer.get(queue, auto_ack=False)
    assert got, f"nothing came in {queue}"
    peer.channel.basic_reject(got[0].delivery_tag, requeue=requeue)


def bodies(peer: Peer, queue: str) -> list[str]:
    return [body for body, _ in peer.drain(queue)]


# -- chains and cycles -------------------------------------------------------------------------------------------------


def chain(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Four queues, four reasons: x-death in full at the end, the first death unchanged."""

    def scenario(peer: Peer) -> Any:
        end = peer.queue(name="end")
        third = peer.queue({**kind, "x-max-length": 1, **to(end)}, name="third")
        second = peer.queue({**kind, "x-message-ttl": 50, **to(third)}, name="second")
        first = peer.queue({**kind, **to(second)}, name="first")
        peer.publish(first, "a", expiration="60000", headers={"mine": 1}, delivery_mode=2)
        rejected(peer, first)
        peer.until(third, 1)
        peer.publish(third, "pushes it out")
        got = peer.get(end)
        assert got
        return got[2], got[1].delivery_mode, death_headers(got[1])

    return scenario


def round_again(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Rejected and expired in turn, three rounds: a retry queue. Counts go up, the latest entry is first."""

    def scenario(peer: Peer) -> Any:
        work = f"{peer.prefix}.work"
        peer.queue({**kind, "x-message-ttl": 50, **to(work)}, name="wait")
        peer.queue({**kind, **to(f"{peer.prefix}.wait")}, name="work")
        peer.publish(work, "a")
        for _ in range(3):
            rejected(peer, work)
        got = peer.get(work)
        assert got
        return death_headers(got[1])

    return scenario


def to_itself(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Expired into the same queue: dropped at once. Rejected into the same queue: it comes again and again."""

    def scenario(peer: Peer) -> Any:
        name = f"{peer.prefix}.expired"
        peer.queue({**kind, "x-message-ttl": 30, **to(name)}, name="expired")
        peer.publish(name, "gone")
        again = peer.queue({**kind, **to(f"{peer.prefix}.again")}, name="again")
        peer.publish(again, "a")
        for _ in range(3):
            rejected(peer, again)
        got = peer.get(again)
        assert got
        time.sleep(0.2)
        return peer.count(name), death_headers(got[1])

    return scenario


def published_with_x_death(peer: Peer) -> Any:
    """A client sends a letter on with the x-death that it had: is it counted on?"""
    dead = peer.queue(name="dead")
    queue = peer.queue(to(dead))
    peer.publish(queue, "a")
    rejected(peer, queue)
    letter = peer.get(dead)
    assert letter
    peer.channel.basic_publish("", queue, b"a", letter[1])
    rejected(peer, queue)
    letter = peer.get(dead)
    assert letter
    return death_headers(letter[1])


def strange_x_death(peer: Peer) -> Any:
    """Headers of that name that are none."""
    dead = peer.queue(name="dead")
    queue = peer.queue(to(dead))
    told = []
    values: tuple[object, ...] = ("text", 1, [], [1], [{"queue": queue}], {})
    for value in values:
        peer.publish(queue, "a", headers={"x-death": value})
        rejected(peer, queue)
        letter = peer.get(dead)
        told.append(
            letter
            and [
                {key: one for key, one in entry.items() if key != "time"} if isinstance(entry, dict) else entry
                for entry in letter[1].headers["x-death"]
            ]
        )
    return told


# -- where letters go --------------------------------------------------------------------------------------------------


def to_many(peer: Peer) -> Any:
    """Through a fanout, a headers exchange, an alternate exchange, another exchange."""
    channel = peer.channel
    for kind, more in {"fanout": {}, "headers": {}, "direct": {"alternate-exchange": f"{peer.prefix}.fanout"}}.items():
        channel.exchange_declare(f"{peer.prefix}.{kind}", kind, arguments=more)
    targets = [peer.queue(name=name) for name in ("one", "two", "three")]
    for queue in targets[:2]:
        channel.queue_bind(queue, f"{peer.prefix}.fanout")
    channel.queue_bind(targets[2], f"{peer.prefix}.headers", arguments={"x-match": "all", "mine": 1})
    told = []
    for kind in ("fanout", "headers", "direct"):
        queue = peer.queue({"x-dead-letter-exchange": f"{peer.prefix}.{kind}"}, name=f"from {kind}")
        peer.publish(queue, kind, headers={"mine": 1})
        rejected(peer, queue)
        time.sleep(0.1)
        told.append([bodies(peer, target) for target in targets])
    return told


def not_letters(peer: Peer) -> Any:
    """Messages that are purged, deleted with their queue, or held by a queue that expires are not dead-lettered."""
    dead = peer.queue(name="dead")
    purged, deleted = peer.queue(to(dead), name="purged"), peer.queue(to(dead), name="deleted")
    expired = peer.queue({"x-expires": 100, **to(dead)}, name="expired")
    for queue in (purged, deleted, expired):
        peer.publish(queue, "a", "b")
    peer.until(purged, 2)
    peer.until(deleted, 2)
    peer.channel.queue_purge(purged)
    peer.channel.queue_delete(deleted)
    time.sleep(0.5)
    return peer.gone(expired) is not None, peer.count(dead)


def kept_for_its_target(peer: Peer) -> Any:
    """At-least-once: a letter without a way waits in the source, and comes when there is one."""
    exchange = f"{peer.prefix}.x"
    peer.channel.exchange_declare(exchange, "fanout")
    queue = peer.queue({**AT_LEAST_ONCE, "x-dead-letter-exchange": exchange})
    peer.publish(queue, "a", "b")
    rejected(peer, queue)
    rejected(peer, queue)
    time.sleep(0.2)
    dead = peer.queue(name="dead")
    before = peer.count(dead)
    peer.channel.queue_bind(dead, exchange)
    deadline = time.monotonic() + 200
    while peer.count(dead) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    return before, sorted(bodies(peer, dead))


def letters_count(peer: Peer) -> Any:
    """At-least-once: letters that wait count towards the limit (S-150)."""
    queue = peer.queue({**AT_LEAST_ONCE, "x-dead-letter-exchange": f"{peer.prefix}.nowhere", "x-max-length": 2})
    first = published_with_confirms(peer, queue, "a", "b")
    rejected(peer, queue)
    rejected(peer, queue)
    time.sleep(0.2)
    later = published_with_confirms(peer, queue, *"cdefgh")
    return first, later[-1], peer.count(queue) < 2


def at_most_once(peer: Peer) -> Any:
    """Without a way a letter is gone, for classic and quorum queues."""
    told = []
    for name, kind in {"classic": {}, "quorum": QUORUM}.items():
        exchange = f"{peer.prefix}.{name}"
        queue = peer.queue({**kind, "x-dead-letter-exchange": exchange}, name=name)
        peer.publish(queue, "a", "b")
        rejected(peer, queue)
        time.sleep(0.2)
        peer.channel.exchange_declare(exchange, "fanout")
        dead = peer.queue(name=f"{name} dead")
        peer.channel.queue_bind(dead, exchange)
        rejected(peer, queue)
        peer.until(dead, 1)
        told.append(bodies(peer, dead))
    return told


# -- limits and time ---------------------------------------------------------------------------------------------------


def both_limits(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """By number and by bytes; a large message pushes several out, one that is too large pushes out all and itself."""

    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        queue = peer.queue({**kind, "x-max-length": 4, "x-max-length-bytes": 10, **to(dead)})
        told = []
        for body in ("aaa", "bbb", "ccc", "dddd", "e", "f", "g", "h", "i" * 10, "j" * 11, ""):
            published_with_confirms(peer, queue, body)
            told.append(peer.count(queue))
        time.sleep(0.2)
        return told, sorted(bodies(peer, dead)), bodies(peer, queue)

    return scenario


def refused_until_there_is_room(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """reject-publish with a limit of ten: full, one is taken, and more."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue({**kind, "x-max-length": 10, "x-overflow": "reject-publish"})
        first = published_with_confirms(peer, queue, *"abcdefghij")
        for _ in range(3):  # a quorum queue tells its publishers a little later (S-026)
            published_with_confirms(peer, queue, "over")
            time.sleep(0.1)
        full = published_with_confirms(peer, queue, "over")
        for _ in range(6):
            peer.get(queue)
        time.sleep(0.2)
        return first, full, published_with_confirms(peer, queue, "k"), published_with_confirms(peer, queue, "l")

    return scenario


def expired_in_order(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Expirations of many lengths: they die at the head only, in the order of the queue."""

    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        queue = peer.queue({**kind, **to(dead)})
        for body, expiration in (("600", "600"), ("50", "50"), ("100", "100"), ("none", None), ("10", "10")):
            peer.publish(queue, body, expiration=expiration)
        time.sleep(0.15)
        before = peer.count(queue), peer.count(dead)
        peer.until(dead, 3)
        letters = bodies(peer, dead)
        peer.until(queue, 2)
        rest = peer.count(queue)
        return before, letters, rest, bodies(peer, queue)

    return scenario


def out_when_expired(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """A delivered message does not expire: acked late it is acked, given back late it dies."""

    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        queue = peer.queue({**kind, "x-message-ttl": 1000, **to(dead)})
        peer.publish(queue, "acked", "back")
        got = [peer.get(queue, auto_ack=False) for _ in range(2)]
        time.sleep(1.2)
        counts = peer.count(queue), peer.count(dead)
        assert got[0]
        assert got[1]
        peer.channel.basic_ack(got[0][0].delivery_tag)
        peer.channel.basic_reject(got[1][0].delivery_tag, requeue=True)
        peer.until(dead, 1)
        letter = peer.get(dead)
        assert letter
        return counts, letter[2], death_headers(letter[1])

    return scenario


def expirations(peer: Peer) -> Any:
    """The broker accepts or refuses each of these texts as an expiration."""
    queue = peer.queue()
    return {
        repr(value): peer.error(lambda c, v: c.basic_publish("", queue, b"", pika.BasicProperties(expiration=v)), value)
        for value in (
            "0",
            "1",
            "007",
            "+1",
            "-1",
            "1.5",
            "1e3",
            " 1",
            "1 ",
            "",
            "x",
            "1x",
            "315360000000",
            "315360000001",
            "99999999999999999999",
        )
    }


def lease(peer: Peer) -> Any:
    """x-expires of classic queues: used by a get or a declaration, they stay; a consumer's end begins it anew.
    Twenty uses in a lease: a machine that is slow for a second does not decide."""
    arguments = {"x-expires": 2000}
    queues = {use: peer.queue(arguments, name=use) for use in ("nothing", "get", "declare", "passive")}
    begin = time.monotonic()
    while time.monotonic() < begin + 2.4:
        time.sleep(0.1)
        peer.channel.basic_get(queues["get"])
        peer.queue(arguments, name="declare")
        peer.channel.queue_declare(queues["passive"], passive=True)
    return [peer.error(lambda c, q: c.queue_declare(q, passive=True), queue) is None for queue in queues.values()]


KINDS: dict[str, dict[str, Any]] = {"classic": {}, "quorum": QUORUM}
SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    **{
        f"{what}, {kind}": make(arguments)
        for what, make in {
            "chain of deaths": chain,
            "round again": round_again,
            "letters to itself": to_itself,
            "both limits": both_limits,
            "refused until there is room": refused_until_there_is_room,
            "expired in order": expired_in_order,
            "out when expired": out_when_expired,
        }.items()
        for kind, arguments in KINDS.items()
    },
    "published with x-death": published_with_x_death,
    "strange x-death": strange_x_death,
    "letters to many": to_many,
    "not letters": not_letters,
    "letter kept for its target": kept_for_its_target,
    "letters count": letters_count,
    "letters at most once": at_most_once,
    "expirations": expirations,
    "lease": lease,
}
