"""Nodes on Kafka to which a few events are much: they copy each snapshot, and begin with one that saves twenty events.
They pause a partition a second after its last use.

The file that REWINDMQ_TEST_DIE names has a step, and `process`: sending, sent (of the owner's copy), fetched, written,
discarded, entered (of the node that begins with it).
"""

from rewindmq.engine.cli.main import main
from rewindmq.engine.cluster import partition_pausing, snapshot_export, snapshot_import
from rewindmq.engine.log.kafka import states
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.store.projector import Projector
from rewindmq.projections.store.store import StateStore
from tests.support.hasty_trims import arm_dying, dying
from tests.support.running import RunningBroker

LEAST_EVENTS = 20
PIECE_BYTES = 100


class EnteringNode(RunningBroker):
    program = ("-m", "tests.support.kafka.entering_nodes")


if __name__ == "__main__":
    import sys

    partition_pausing.UNUSED_SECONDS = 1.0
    snapshot_import.LEAST_EVENTS = LEAST_EVENTS  # type: ignore[misc]
    snapshot_export.BYTES_AN_EVENT = 1_000_000  # type: ignore[misc]
    states.PIECE_BYTES = PIECE_BYTES  # type: ignore[misc]
    dying(states.KafkaStates, "write", after="sent")
    arm_dying("copy.before_end", "sending")
    dying(states.KafkaStates, "newest", after="fetched")
    dying(Bases, "write", after="written")
    dying(Projector, "write_anew", before="discarded")
    dying(StateStore, "begin", after="entered")
    main(["start", *sys.argv[1:]])
