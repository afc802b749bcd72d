"""The machine version that the history follows, and the operator's decision to follow the program's.

    rewindmq finalize_upgrade -> MachineUpgraded in the metadata log, then in each queue partition (Keeper.upgrade)

Until then a newer program writes everything that it stores under the version of the history, so its predecessor can
take over again. Decision 0089 says why an operator decides it.

Rules of this file
- What needs a later machine version than the history follows is refused (since_version.py).
- Nothing is finalized while a node is alive that does not know the version: it would end.
"""

import logging
from typing import TYPE_CHECKING

from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import MachineUpgraded
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

logger = logging.getLogger(__name__)


class OlderNodes(Exception):
    """Nodes are alive that do not know the machine version."""


def tell_due(topology: Topology) -> None:
    """Log that an operator may finalize the upgrade to this program, if that is so."""
    if topology.machine_version < MACHINE_VERSION:
        logger.warning(
            "the history follows machine version %d, and this program knows %d: run `rewindmq finalize_upgrade` when"
            " you will not go back to the previous program",
            topology.machine_version,
            MACHINE_VERSION,
        )


async def finalize(broker: "Broker", actor: Actor) -> int:
    """Let the history follow the newest machine version that this program knows. Returns the previous version.

    Every partition follows it when what was appended is durable. Raises OlderNodes."""
    topology = broker.topology
    before = topology.machine_version
    older = sorted(each.node for each in topology.nodes.values() if each.machine_version < MACHINE_VERSION)
    if older:
        raise OlderNodes(
            f"machine version {MACHINE_VERSION} is not known to {', '.join(older)}: upgrade or stop what is older first"
        )
    if before < MACHINE_VERSION:
        await broker.metadata.ask(actor, MachineUpgraded(MACHINE_VERSION))
        logger.warning(
            "user %r finalized the upgrade: the history follows machine version %d, and followed %d",
            actor.user,
            MACHINE_VERSION,
            before,
        )
        broker.turns.end()
        for partition in broker.partitions:
            await partition.enter()
            await partition.folded()
    return before
