"""Machine versions: from which one on each rule holds.

A history says when it goes on under another version (`MachineUpgraded`), so older events fold as they did. A rule that
came later is asked for by its name here: `state.machine_version >= CLOCK_SET`. A rule of queues holds for the queues
that are declared from its version on (`Queue.version`).
"""

from typing import Final

from rewindmq.schemas.registry import envelope_fingerprint

MACHINE_VERSION = 7  # the highest version that this code can fold

# Version 2
SEMANTICS: Final = 2  # x-semantics: a queue is like another version of RabbitMQ (profile.py)
PRIORITIES: Final = 2  # x-max-priority
SINGLE_ACTIVE: Final = 2  # x-single-active-consumer
STREAMS: Final = 2  # queues of type stream, and reading the past of any queue
DELAYS: Final = 2  # hidden queues of type delayed
LEASE_RENEWAL: Final = 2  # LeaseRenewed
# Version 3
FAIR_TURNS: Final = 3  # consumers under one channel's limit are served in turn (machine/events/delivery.py)
CLOCK_SET: Final = 3  # ClockSet
PCRE2_PATTERNS: Final = 3  # patterns of policies are PCRE2's (projections/rules/patterns.py)
# Version 4
LOOKAHEAD: Final = 4  # a consumer with a prefetch may hold more for a while (machine/events/lookahead.py)
# Version 5
REMOVALS: Final = 5  # MessageRemoved (machine/events/removal.py)
PAUSES: Final = 5  # QueuePaused, QueueResumed (machine/events/pause.py)
LATE_PUBLISHES: Final = 5  # a publish through a node that was lost before counts: the node may have confirmed it

# Version 6
DEDUPLICATION: Final = 6  # duplicates are dropped by their id (machine/rules/deduplication.py)

# Version 7
RELOCATION: Final = 7  # queues move to another partition (QueueDrained, QueueDeclared.moved_from)
LATE_POLICIES: Final = 7  # a policy that comes behind its queue's end is no error: another node deleted the queue

# A node of version 5 knows the first one, and none of the later ones; a node of version 6 the second one, too.
OLDEST_SCHEMA: Final = "6dd1d11a3ad23c7e"
SCHEMA_OF_6: Final = "559f2981aa3c8d06"


def schema_of(machine_version: int) -> str:
    """The fingerprint of the schema that every node knows which can fold this version.

    Nodes that share a log write under it. So a node of the version before can read all that newer ones write, until
    the `MachineUpgraded` at which it ends. It would quarantine a record of a schema that it does not know."""
    if machine_version < DEDUPLICATION:
        return OLDEST_SCHEMA
    return SCHEMA_OF_6 if machine_version < RELOCATION else envelope_fingerprint()
