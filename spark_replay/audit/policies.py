"""Audits policies: a queue's partition says which policies held; the metadata log says where they were set.

    was set     each policy in force was set at the offset of the metadata log that it names, as it was used
    is applied  the policies that a queue has at the end are those that the topology gives it (no policy applies to the
                broker's own queues: for delayed messages, for direct replies)

Beside a running broker a policy may be set and not yet applied. The embedded log's broker logs both in one go. So an
event that a partition logged after the last policy was set, by its clock, stands behind the application: only then are
the policies compared with the queue. Among nodes that share a log, the application follows when the node with the duty
has read the policy; it has `APPLIED_WITHIN_MS` for it.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rewindmq.engine.keeping.location import InArchive, Location
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.replay import decoder_for
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.projections.topology.placement import Placement
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.metadata_events import Bound, OperatorPolicyCleared, OperatorPolicySet, PolicyCleared, PolicySet
from rewindmq.schemas.values import Policy
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import groups_in, is_of_kafka
from rewindmq.spark_replay.location.ranges import OffsetRange

POLICIES = "policies"
APPLIED_WITHIN_MS = 60_000
# Rows that a partition's task leaves for the driver; they are no findings
WAS_IN_FORCE, IS_IN_FORCE = "policy was in force", "policies in force"


def rows_for_driver(product: AuditProduct) -> list[tuple[Any, ...]]:
    """Return the uses of policies in one partition, as rows of AUDIT with JSON in `detail`."""
    rows: list[tuple[Any, ...]] = []
    for (vhost, policy), offset in product.policies.items():
        use = {"vhost": vhost, "name": policy.name, "definition": policy.definition, "version": policy.version}
        rows.append((WAS_IN_FORCE, True, product.partition, offset, None, None, canonical_json(use)))
    for queue in product.machine.queues():
        account = product.accounts.get((queue.vhost, queue.name))
        held = {
            "vhost": queue.vhost,
            "queue": queue.name,
            "type": queue.type,
            "policy": _shown(queue.policy),
            "operator_policy": _shown(queue.operator_policy),
            "clock_ms": product.log_ms,
            "since_ms": product.log_ms if account is None else account.declared_ms,
        }
        rows.append((IS_IN_FORCE, True, product.partition, product.offset, None, None, canonical_json(held)))
    return rows


class PolicyBook:
    """The metadata log so far: the policies that were set, their offsets, and the topology that they make."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.log = location.open().metadata
        self.partition = self.log.name
        self.late_ms = APPLIED_WITHIN_MS if is_of_kafka(location) else 0
        self.topology = Topology()
        self.set_at: dict[int, tuple[str, str, str]] = {}
        self.bound_ms: dict[Bound, int] = {}  # the time of each binding
        self.last_change_ms = 0
        self.read_to = 0
        self.read_ms = 0  # the time of the last record that was read

    @property
    def reach(self) -> OffsetRange:
        """The offsets of the metadata log that were read."""
        return OffsetRange(self.partition, 0, self.read_to)

    def read_on(self) -> None:
        """Read up to the end of the log now: policies in force in a queue were set before."""
        decode = decoder_for(self.log).decode
        for offsets, records, times in groups_in(self.log, self.read_to, self.log.next_offset, 10_000, 1 << 23):
            for index, offset in enumerate(offsets):
                self.read_to = offset + 1
                try:
                    timestamp_ms, actor, event = decode(records[index])
                except UndecodableRecord:
                    continue
                if times is not None:
                    timestamp_ms = times[index]
                self.read_ms = timestamp_ms
                if isinstance(event, PolicySet | OperatorPolicySet):
                    self.set_at[offset] = (event.vhost, event.name, event.definition)
                if isinstance(event, Bound):
                    self.bound_ms[event] = timestamp_ms
                if isinstance(event, PolicySet | OperatorPolicySet | PolicyCleared | OperatorPolicyCleared):
                    self.last_change_ms = timestamp_ms
                self.topology.apply(offset, timestamp_ms, actor, event)

    def findings(self, rows: Sequence[Any]) -> list[Finding]:
        """Compare the rows of all partitions with the metadata log as it is now."""
        self.read_on()
        lineage.read([self.reach])
        looked_at = f"{len(rows)} uses of {len(self.set_at)} policies"
        return self.check(rows) or [Finding(POLICIES, True, self.partition, None, None, None, looked_at)]

    def check(self, rows: Sequence[Any]) -> list[Finding]:
        """Return the findings about the rows of partitions that do not hold."""
        findings = []
        for row in rows:
            use = json.loads(row.detail)
            if self._is_beyond(row, use):
                continue
            if row.check == WAS_IN_FORCE:
                findings += self._was_set(row, use)
            elif use["clock_ms"] > self.last_change_ms + self.late_ms:
                findings += self._is_applied(row, use)
        return findings

    def _is_beyond(self, row: Any, use: dict[str, Any]) -> bool:
        """Return True if the use belongs to a part of the metadata log that is not archived yet.

        Partitions are not archived up to the same moment."""
        if not isinstance(self.location, InArchive):
            return False
        return bool(use["version"] >= self.read_to if row.check == WAS_IN_FORCE else use["clock_ms"] >= self.read_ms)

    def _was_set(self, row: Any, use: dict[str, Any]) -> list[Finding]:
        if self.set_at.get(use["version"]) == (use["vhost"], use["name"], use["definition"]):
            return []
        where = f"{self.partition} offset {use['version']}"
        detail = f"policy {use['name']} {use['definition']} was not set at {where}"
        return [Finding(POLICIES, False, row.partition, row.offset, None, None, detail)]

    def _is_applied(self, row: Any, use: dict[str, Any]) -> list[Finding]:
        requested = (use["vhost"], use["queue"], use["type"])
        hidden = is_hidden(use["queue"])
        wanted = {
            "policy": None if hidden else _shown(self.topology.effective_policy(*requested)),
            "operator_policy": None if hidden else _shown(self.topology.effective_operator_policy(*requested)),
        }
        name = f"{use['vhost']}/{use['queue']}"
        wrong = [f"{kind} is {use[kind]}, should be {right}" for kind, right in wanted.items() if use[kind] != right]
        return [Finding(POLICIES, False, row.partition, row.offset, name, None, detail) for detail in wrong]


def queues_since(rows: Iterable[Any], placement: Placement) -> dict[str, int]:
    """Return the queues that exist at the end, `vhost/name`, and the times of their declarations.

    The remains of a queue in a partition that it has left are not a queue."""
    found = {}
    for row in rows:
        if row.check == IS_IN_FORCE:
            held, number = json.loads(row.detail), number_of(row.partition)
            if not placement.count or placement.home(held["vhost"], held["queue"], 0) == number:
                found[f"{held['vhost']}/{held['queue']}"] = held["since_ms"]
    return found


def _shown(policy: Policy | None) -> list[str] | None:
    return None if policy is None else [policy.name, policy.definition]
