"""Scenarios of policies: which holds, how they merge with arguments and operators', what a change does. See
scenarios.py."""

import time
from collections.abc import Callable
from typing import Any

from pika.exceptions import NackError

from tests.clients.peer import QUORUM, Peer


def confirmed(peer: Peer, queue: str, count: int) -> list[str]:
    channel = peer.connection.channel()
    channel.confirm_delivery()
    told = []
    for number in range(count):
        try:
            channel.basic_publish("", queue, f"{number}".encode())
            told.append("ack")
        except NackError:
            told.append("nack")
    channel.close()
    return told


def merged_limits(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """max-length of argument, policy, operator: the smallest (S-003, S-004)."""

    def scenario(peer: Peer) -> Any:
        told = []
        for argument, policy, operator in ((3, 5, None), (5, 3, None), (5, 4, 3), (None, 3, 5), (None, None, 3)):
            name = f"{argument} {policy} {operator}"
            queue = peer.queue({**kind, **({} if argument is None else {"x-max-length": argument})}, name=name)
            if policy is not None:
                peer.policy({"max-length": policy})
            if operator is not None:
                peer.policy({"max-length": operator}, kind="operator-policies")
            time.sleep(0.2)
            confirmed(peer, queue, 7)
            told.append([body for body, _ in peer.drain(queue)])
            peer.unmade()
        return told

    return scenario


def overflow_of_both(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Which overflow holds when argument and policy differ (S-029)."""

    def scenario(peer: Peer) -> Any:
        told = []
        for argument, policy in (("drop-head", "reject-publish"), ("reject-publish", "drop-head")):
            queue = peer.queue({**kind, "x-overflow": argument, "x-max-length": 1}, name=argument)
            peer.policy({"overflow": policy})
            time.sleep(0.2)
            told.append((confirmed(peer, queue, 4)[-1], [body for body, _ in peer.drain(queue)]))
            peer.unmade()
        return told

    return scenario


def left(peer: Peer, queue: str) -> int:
    """Publish a message, and return the number of messages left after a while, which is longer than a short TTL.

    On Kafka, beside other work, a message with a TTL of 20 ms survived for more than a second."""
    peer.publish(queue, "x")
    time.sleep(0.1)
    peer.until(queue, 0, seconds=5)
    return peer.count(queue)


def ttl_of_both(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """message-ttl of argument and policy: the smaller; the policy's end is felt."""

    def scenario(peer: Peer) -> Any:
        told = []
        for argument, policy in ((60000, 20), (20, 60000)):
            queue = peer.queue({**kind, "x-message-ttl": argument}, name=f"{argument}")
            peer.policy({"message-ttl": policy})
            time.sleep(0.2)
            told.append(left(peer, queue))
            peer.unmade()
            time.sleep(1)  # the queue's partition learns of it; on Kafka that takes a while beside other work
            told.append(left(peer, queue))
        return told

    return scenario


def lowered(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """A limit that comes drops at once; its letters; one that goes lets more in (S-028)."""

    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        queue = peer.queue({**kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}, name="limited")
        peer.publish(queue, *"abcde")
        peer.until(queue, 5)
        peer.policy({"max-length": 2}, pattern=".limited")
        peer.until(queue, 2)
        peer.until(dead, 3)
        letters = sorted(body for body, _ in peer.drain(dead))
        peer.unmade()
        time.sleep(0.2)
        peer.publish(queue, "f")
        peer.until(queue, 3)
        return letters, peer.drain(queue)

    return scenario


def dead_letters_of_a_policy(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Arguments win over the policy; without arguments the policy's exchange and key."""

    def scenario(peer: Peer) -> Any:
        argued, policied = peer.queue(name="argued"), peer.queue(name="policied")
        one = peer.queue({**kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": argued}, name="l one")
        two = peer.queue(kind, name="l two")
        peer.policy({"dead-letter-exchange": "", "dead-letter-routing-key": policied}, pattern=".l ")
        time.sleep(0.2)
        for queue in (one, two):
            peer.publish(queue, queue)
            got = peer.get(queue, auto_ack=False)
            assert got
            peer.channel.basic_reject(got[0].delivery_tag, requeue=False)
        return peer.get(argued) is not None, peer.get(policied) is not None

    return scenario


def which_holds(peer: Peer) -> Any:
    """The highest priority; of other kinds none; a new one at once, and the one before again when it goes."""
    queue = peer.queue(name="a")
    told = []

    def kept() -> None:
        """Note how many of nine published messages the queue keeps."""
        time.sleep(0.2)
        confirmed(peer, queue, 9)
        told.append(len(peer.drain(queue)))

    kept()
    peer.policy({"max-length": 1}, "low", priority=1)
    kept()
    peer.policy({"max-length": 2}, "high", priority=2)
    kept()
    peer.policy({"alternate-exchange": "x"}, "exchanges", to="exchanges", priority=9)
    kept()
    peer.policy({"max-length": 3}, "other", pattern=".b", priority=9)
    kept()
    peer.policy({"max-length-bytes": 4}, "highest", to="all", priority=10)
    kept()
    peer.manage("DELETE", peer.made.pop())
    kept()
    queue = peer.queue(name="a later")
    kept()
    return told


def expires_of_a_policy(peer: Peer) -> Any:
    """It begins when the policy comes, and the smaller of both holds."""
    plain, argued = peer.queue(name="plain"), peer.queue({"x-expires": 60000}, name="argued")
    peer.policy({"expires": 300})
    time.sleep(1.5)  # to ask whether they are there is to use them
    return [peer.error(lambda c, q: c.queue_declare(q, passive=True), queue) for queue in (plain, argued)]


def delivery_limit_of_both(peer: Peer) -> Any:
    """Argument, policy: the smaller."""
    told = []
    for argument, policy in ((1, 3), (3, 1)):
        queue = peer.queue({**QUORUM, "x-delivery-limit": argument}, name=f"{argument}")
        peer.policy({"delivery-limit": policy})
        time.sleep(0.2)
        peer.publish(queue, "x")
        deliveries = 0
        while (got := peer.get(queue, auto_ack=False, seconds=0.3 if deliveries else 3)) is not None:
            deliveries += 1
            peer.channel.basic_reject(got[0].delivery_tag, requeue=True)
        told.append(deliveries)
        peer.unmade()
    return told


def refused(peer: Peer) -> Any:
    """Definitions that are no policies, by status."""
    cases: dict[str, dict[str, Any]] = {
        "max-length": {"max-length": -1},
        "text": {"max-length": "5"},
        "overflow": {"overflow": "drop"},
        "unknown": {"max-lengths": 5},
        "ttl": {"message-ttl": -1},
        "expires": {"expires": 0},
        "nothing": {},
        "limit": {"delivery-limit": -1},
        "strategy": {"dead-letter-strategy": "never"},
        "two": {"max-length": 1, "x": 2},
        "exchange": {"dead-letter-exchange": 1},
        "priority": {"max-priority": 5},
        "mode": {"queue-mode": "lazy"},
    }
    return {
        **{name: peer.policy(definition)[0] for name, definition in cases.items()},
        "operator": peer.policy({"dead-letter-exchange": "x"}, kind="operator-policies")[0],
        "apply-to": peer.policy({"max-length": 1}, to="everything")[0],
        "pattern": peer.manage("PUT", "policies/%2F/wrong", {"pattern": "(", "definition": {"max-length": 1}})[0],
        "no pattern": peer.manage("PUT", "policies/%2F/wrong", {"definition": {"max-length": 1}})[0],
    }


KINDS: dict[str, dict[str, Any]] = {"classic": {}, "quorum": QUORUM}
SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    **{
        f"{what}, {kind}": make(arguments)
        for what, make in {
            "merged limits": merged_limits,
            "overflow of both": overflow_of_both,
            "ttl of both": ttl_of_both,
            "lowered": lowered,
            "dead letters of a policy": dead_letters_of_a_policy,
        }.items()
        for kind, arguments in KINDS.items()
    },
    "which policy holds": which_holds,
    "expires of a policy": expires_of_a_policy,
    "delivery limit of both": delivery_limit_of_both,
    "policies refused": refused,
}
