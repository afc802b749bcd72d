"""The account of what clients saw, kept as Jepsen keeps it, and the judgement over it.

    published -> confirmed | refused | unknown (the broker died before it answered)
    delivered -> acked (the ack was sent) -> settled (the broker answered, when everything before was durable)

What must hold, however often the broker is killed:
- lost: nothing. A confirmed publish has been acked, or is delivered again in the end.
- invented: nothing is delivered that nobody published.
- resurrected: nothing. An ack that is settled is final.
- twice: within one life of the broker a message comes a second time only with the redelivered flag.
- order: what one publisher sent to a queue, a consumer sees in that order, redeliveries left aside.
An ack that was sent and not settled may be lost with the broker: its message may come again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Message = tuple[int, int]  # publisher, sequence number


def encode(message: Message) -> bytes:
    return b"%d:%d" % message


def decode(body: bytes) -> Message:
    publisher, sequence = body.split(b":")
    return int(publisher), int(sequence)


@dataclass
class QueueAccount:
    """One queue. Where messages of a source queue end as dead letters, both are one account."""

    expected: set[Message] = field(default_factory=set)  # confirmed
    possible: set[Message] = field(default_factory=set)  # published
    delivered: Counter[Message] = field(default_factory=Counter)
    acked: set[Message] = field(default_factory=set)
    settled: set[Message] = field(default_factory=set)
    seen_in: dict[Message, int] = field(default_factory=dict)  # the broker's life in which it came last
    twice: list[Message] = field(default_factory=list)
    unflagged: list[Message] = field(default_factory=list)  # in an earlier life, and again without the flag
    resurrected: list[Message] = field(default_factory=list)
    disordered: list[tuple[Message, int]] = field(default_factory=list)


class Ledger:
    """Accounts by queue name. `life` counts the broker's starts."""

    def __init__(self, queues: list[str]) -> None:
        self.queues = {name: QueueAccount() for name in queues}
        self.life = 0
        self.confirmed = 0
        self.unknown = 0

    def published(self, queues: list[str], message: Message) -> None:
        for name in queues:
            self.queues[name].possible.add(message)

    def confirm(self, queues: list[str], message: Message) -> None:
        self.confirmed += 1
        for name in queues:
            self.queues[name].expected.add(message)

    def delivered(self, name: str, message: Message, redelivered: bool, last: dict[int, int], life: int) -> None:
        """`last`: the consumer's highest sequence number so far, by publisher. `life`: the consumer's connection is of
        this life of the broker."""
        account = self.queues[name]
        account.delivered[message] += 1
        if message in account.settled:
            account.resurrected.append(message)
        if not redelivered:
            if account.seen_in.get(message) == life:
                account.twice.append(message)
            elif message in account.seen_in:
                account.unflagged.append(message)
            publisher, sequence = message
            if sequence < last.get(publisher, -1):
                account.disordered.append((message, last[publisher]))
            last[publisher] = sequence
        account.seen_in[message] = max(life, account.seen_in.get(message, life))

    def judge(self) -> list[str]:
        """Return a line for each kind of violation in a queue; an empty list if there is none."""
        wrong = []
        for name, account in self.queues.items():
            findings: dict[str, Sequence[object]] = {
                "lost": sorted(account.expected - account.acked),
                "invented": sorted(set(account.delivered) - account.possible),
                "resurrected": list(account.resurrected),
                "delivered twice without the redelivered flag": list(account.twice),
                "out of order": list(account.disordered),
            }
            wrong += [f"{name}: {len(found)} {what}: {found[:10]}" for what, found in findings.items() if found]
        return wrong

    def summary(self) -> str:
        parts = [f"{self.life} lives, {self.confirmed} confirmed, {self.unknown} unknown"]
        for name, account in self.queues.items():
            again = sum(account.delivered.values()) - len(account.delivered)
            recovered = len(set(account.delivered) - account.expected)
            parts.append(
                f"{name}: {len(account.expected)} confirmed, {recovered} more recovered, {again} deliveries again,"
                f" {len(account.unflagged)} of them after a crash without the flag"
            )
        return "\n  ".join(parts)
