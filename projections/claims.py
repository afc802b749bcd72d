"""Compares brokers' claims about their state (`Checkpointed`) with the fold."""

from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.verify import NOT_CHECKED
from rewindmq.schemas.events import Checkpointed

ASKED = 256  # a limit on the CheckpointAsked whose digests are kept for later claims


class Claims:
    """The claims in one partition, or in a range of it."""

    def __init__(self) -> None:
        self.count = 0
        self.held_at = -1  # offset of the last claim that was right; -1: none was
        self.claimants: dict[str, None] = {}  # nodes, in the order of their first claims
        self.asked: dict[int, str] = {}  # offset of a CheckpointAsked -> the digest after it
        self.passed_by = 0

    def begin(self, machine: Machine) -> None:
        """Begin in the middle of a history: a claim about this moment may follow some events later."""
        if machine.next_offset:
            self.claim_requested(machine.next_offset - 1, machine)

    def claim_requested(self, offset: int, machine: Machine) -> None:
        """Note the digest: the machine has just applied a CheckpointAsked at `offset`."""
        self.asked[offset] = machine.digest()
        if len(self.asked) > ASKED:
            del self.asked[next(iter(self.asked))]

    def compare(self, machine: Machine, event: Checkpointed) -> str | None:
        """Check a claim that the machine is about to apply. Return the fault in it, or None.

        A claim is about the state after `event.offset`. A single broker appends it at once. Nodes that share the log
        interleave their events, so their claims are about the offset of a CheckpointAsked."""
        self.count += 1
        if event.node:
            self.claimants[event.node] = None
        digest = self.asked.get(event.offset)
        if digest is None and event.offset == machine.next_offset - 1:
            digest = machine.digest()
        if digest is None and not event.node:
            return f"the broker claims what was after offset {event.offset}; it says so right behind it, and not here"
        if digest is None:
            self.passed_by += 1  # other events intervened: the state is no longer the claimed one
            return None
        if event.digest == digest:
            self.held_at = event.offset
            return None
        who = f"node {event.node}" if event.node else "the broker"
        since = "no claim before it held" if self.held_at < 0 else f"the last that held is of offset {self.held_at}"
        return f"{who} claimed {event.digest} after offset {event.offset}, the fold has {digest}; {since}"

    def __str__(self) -> str:
        by = f" by {', '.join(sorted(self.claimants))}" if self.claimants else ""
        return in_words(self.count, self.passed_by, by)


def in_words(count: int, passed_by: int, by: str = "") -> str:
    """Describe the result: of `count` claims, `passed_by` could not be compared."""
    if count == passed_by:
        return f"{NOT_CHECKED}{count} claims{by}, none that could be compared" if count else f"{NOT_CHECKED}0 claims"
    return f"{count} claims{by}" + (f", {passed_by} not comparable" if passed_by else "")
