"""The audit of policies: a queue's own partition says which policies held; the metadata log says who set them.

    was set     each policy in force was set at the offset of the metadata log that it names, as it was used
    is applied  the policies that a queue has at the end are those that the topology would give it

Beside a running broker a policy may be set and not yet applied. The broker logs both in one go, so whatever a
partition logged after the last policy was set, by its clock, stands behind the application: only then is it held
against the queue.
"""

import json
from collections.abc import Sequence
from typing import Any

from projections.topology import Topology
from schemas.codec import Decoder, UndecodableRecord
from schemas.events import (
    OperatorPolicyCleared,
    OperatorPolicySet,
    Policy,
    PolicyCleared,
    PolicySet,
)  # fmt: skip
from spark_replay.audit_fold import AuditProduct
from spark_replay.events import canonical_json
from spark_replay.findings import Finding
from spark_replay.history_log import partition_of, read_groups
from spark_replay.ranges import Range

POLICIES = "policies"
# Rows that a partition's task leaves for the driver; they are no findings
WAS_IN_FORCE, IS_IN_FORCE = "policy was in force", "policies in force"


def rows_for_driver(product: AuditProduct) -> list[tuple[Any, ...]]:
    """What one partition says about policies, as rows of AUDIT with JSON in `detail`."""
    rows: list[tuple[Any, ...]] = []
    for (vhost, policy), offset in product.policies.items():
        told = {"vhost": vhost, "name": policy.name, "definition": policy.definition, "version": policy.version}
        rows.append((WAS_IN_FORCE, True, product.partition, offset, None, None, canonical_json(told)))
    for queue in product.machine.queues():
        held = {
            "vhost": queue.vhost,
            "queue": queue.name,
            "type": queue.type,
            "policy": _shown(queue.policy),
            "operator_policy": _shown(queue.operator_policy),
            "clock_ms": product.now_ms,
        }
        rows.append((IS_IN_FORCE, True, product.partition, product.offset, None, None, canonical_json(held)))
    return rows


def check_policies(data: str, metadata: Range, rows: Sequence[Any]) -> list[Finding]:
    """Hold the rows of all partitions against the metadata log."""
    topology = Topology()
    set_at: dict[int, tuple[str, str, str]] = {}
    last_change_ms = 0
    decode = Decoder().decode
    # A policy may have been set since the audit began, and be in the rows: look it up in all there is now
    end = partition_of(data, metadata.partition).next_offset
    for first, records in read_groups(data, Range(metadata.partition, 0, end), 10_000, 1 << 23):
        for offset, record in enumerate(records, first):
            try:
                timestamp_ms, actor, event = decode(record)
            except UndecodableRecord:
                continue
            if isinstance(event, PolicySet | OperatorPolicySet):
                set_at[offset] = (event.vhost, event.name, event.definition)
            if isinstance(event, PolicySet | OperatorPolicySet | PolicyCleared | OperatorPolicyCleared):
                last_change_ms = timestamp_ms
            topology.apply(offset, timestamp_ms, actor, event)
    findings = []
    for row in rows:
        told = json.loads(row.detail)
        if row.check == WAS_IN_FORCE:
            findings += _was_set(row, told, set_at, metadata.partition)
        elif told["clock_ms"] > last_change_ms:
            findings += _is_applied(row, told, topology)
    if findings:
        return findings
    looked_at = f"{len(rows)} uses of {len(set_at)} policies"
    return [Finding(POLICIES, True, metadata.partition, None, None, None, looked_at)]


def _was_set(row: Any, told: dict[str, Any], set_at: dict[int, tuple[str, str, str]], metadata: str) -> list[Finding]:
    if set_at.get(told["version"]) == (told["vhost"], told["name"], told["definition"]):
        return []
    detail = f"policy {told['name']} {told['definition']} was not set at {metadata} offset {told['version']}"
    return [Finding(POLICIES, False, row.partition, row.offset, None, None, detail)]


def _is_applied(row: Any, told: dict[str, Any], topology: Topology) -> list[Finding]:
    asked = (told["vhost"], told["queue"], told["type"])
    wanted = {
        "policy": _shown(topology.effective_policy(*asked)),
        "operator_policy": _shown(topology.effective_operator_policy(*asked)),
    }
    name = f"{told['vhost']}/{told['queue']}"
    return [
        Finding(POLICIES, False, row.partition, row.offset, name, None, f"{kind} is {told[kind]}, should be {policy}")
        for kind, policy in wanted.items()
        if told[kind] != policy
    ]


def _shown(policy: Policy | None) -> list[str] | None:
    return None if policy is None else [policy.name, policy.definition]
