"""The fields of some items in the topology's digest: a field that was added later counts only where it is set.

So the digests of older logs stay as they were.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rewindmq.projections.topology.policies import PolicyRule
from rewindmq.schemas.metadata_events import NodeJoined, VhostCreated


def vhost_fields(vhost: VhostCreated) -> dict[str, Any]:
    """The fields of a vhost, without those that older events lack where they are empty."""
    return {name: value for name, value in asdict(vhost).items() if value or name in ("vhost", "description")}


def node_fields(joined: NodeJoined) -> dict[str, Any]:
    """The fields of a node, without those that older events lack where they are empty."""
    return {name: value for name, value in asdict(joined).items() if value or name != "partitions"}


def rules_fields(rules: Mapping[str, Mapping[str, PolicyRule]]) -> list[list[Any]]:
    """Policies by vhost and name."""
    return [
        [vhost, asdict(rule.event), rule.policy.version]
        for vhost in sorted(rules)
        for _, rule in sorted(rules[vhost].items())
    ]
