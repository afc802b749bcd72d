"""Differences from RabbitMQ that are meant: profile -> name -> the heading in docs/differences.md that says why.

A name is a scenario's, or "scenario: key" where its outcome is a mapping (compare.py).
"""

import json
import re
from typing import Any

COUNT_OF_0 = "x-delivery-count of 0"
CRASHES = "Where RabbitMQ crashes"
NEW_ORDER = "The order of x-death"
REFUSED_STREAM = "Streams at 3.10.8"
READING = "x-stream-offset on other queues"
GLOBAL_PREFETCH = "basic.qos global at 4.3"
CHECKED_AS_3_13 = "Checks and texts"
REDELIVERED = "A dead letter at 4.3"

EXPECTED: dict[str, dict[str, str]] = {
    "3.13": {
        "connection loss, quorum": COUNT_OF_0,
        "connection loss, quorum with delivery limit": COUNT_OF_0,
        "nacked in parts, quorum": COUNT_OF_0,
        "all properties, quorum: headers": COUNT_OF_0,
        "round again, quorum": COUNT_OF_0,
        "letters to itself, quorum": COUNT_OF_0,
        "retry all, nack, no limit": "A negative x-delivery-limit",
        "nacked, no limit": "A negative x-delivery-limit",
        "negative delivery limit": "A negative x-delivery-limit",
        "arguments, quorum: x-delivery-limit='3'": "A negative x-delivery-limit",
        "rejected with copies": "The CC header",
        "arguments, classic: x-queue-master-locator=1": CRASHES,
        "consistent hash: header": CRASHES,
        "stream refuses: offset list": CRASHES,
        "stream refuses: offset text": CRASHES,
        "strange x-death": CRASHES,
        "exchange declared: no type": "An unknown exchange type",
        "exchange declared: unknown type": "An unknown exchange type",
        "single active takes over, classic": "A single active consumer",
        "broken frames: too much body": "A body larger than its header says",
        "stream refuses: nack": REFUSED_STREAM,
        "stream refuses: reject": REFUSED_STREAM,
        "stream refuses: offset on a classic queue": READING,
        "stream of dead letters": REFUSED_STREAM,
        "chain of deaths, classic": NEW_ORDER,
        "chain of deaths, quorum": NEW_ORDER,
        "expirations: '99999999999999999999'": "A very large expiration",
    },
    "4.3": {
        **dict.fromkeys(
            (
                "global prefetch",
                "global prefetch changed under way",
                "global prefetch set late",
                "global prefetch and no_ack",
                "stream refuses: global qos",
            ),
            GLOBAL_PREFETCH,
        ),
        **{
            f"arguments, classic: x-queue-{key}": CHECKED_AS_3_13
            for key in (
                "leader-locator='balanced'",
                "leader-locator='client-local'",
                "leader-locator='random'",
                "leader-locator=1",
                "master-locator='min-masters'",
                "master-locator=1",
                "mode='strange'",
                "mode=1",
                "type=''",
                "version=1",
            )
        },
        **dict.fromkeys(
            (
                "inequivalent",
                "equivalent declarations: max age",
                "single active refuses, quorum",
                "broken frames: too much body",
                "stream refuses: without acks",
                "stream refuses: without prefetch",
                "permissions: exchange passive",
                "permissions: passive",
                "reply-to: late",
            ),
            CHECKED_AS_3_13,
        ),
        "message size": "The largest message",
        "published with x-death: x-death": "x-death that a client sends",
        "expiry of requeued": REDELIVERED,
        "delivery limit 0": REDELIVERED,
        "delivery limit 1": REDELIVERED,
        "delivery limit 3": REDELIVERED,
        "round again, quorum": REDELIVERED,
        "letters to itself, quorum": REDELIVERED,
        "both limits, quorum": "max-length-bytes",
        "consistent hash: header": CRASHES,
        "stream refuses: offset list": CRASHES,
        "reply-to refusals: declare passively, unknown": CRASHES,
        "stream refuses: offset on a classic queue": READING,
        "expirations: '99999999999999999999'": "A very large expiration",
    },
}

# What 3.13 says in other words than 3.10.8, everywhere: RewindMQ's outcome is read as 3.10.8 would have said it.
REWORDED: dict[str, list[tuple[str, str]]] = {
    "3.13": [(r"(read|write|configure) access to", "access to")],
}


def reworded(profile: str, outcome: Any) -> Any:
    text = json.dumps(outcome)
    for pattern, words in REWORDED.get(profile, []):
        text = re.sub(pattern, words, text)
    return json.loads(text)
