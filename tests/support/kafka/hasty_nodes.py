"""Nodes on Kafka whose history is archived and trimmed several times a second, in small stretches; the process beside a
node dies where a test says.

The file that REWINDMQ_TEST_DIE names has a step of a trim (tests/support/hasty_trims.py): audited, written, appended,
deleting, deleted, entered, removed.
"""

from typing import Any

from rewindmq.engine.cli.main import main
from rewindmq.engine.keeping import keep_history
from rewindmq.engine.keeping.archive import pack, trims
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.in_topics import TopicsHistory
from rewindmq.engine.keeping.trim import Trimming
from rewindmq.engine.log import chain
from rewindmq.engine.log.embedded import steady_time
from rewindmq.engine.log.kafka.reader import KafkaPartition
from tests.support.hasty_trims import dying
from tests.support.running import RunningBroker


class HastyNode(RunningBroker):
    """A node that archives every hundred records."""

    program = ("-m", "tests.support.kafka.hasty_nodes")


if __name__ in ("__main__", "__mp_main__"):
    pack.STRETCH_RECORDS = 100  # type: ignore[misc]
    chain.RUN = 10  # as the test has it that reads what these nodes archive
    settled = TopicArchiver._settled

    def settled_soon(self: TopicArchiver, *given: Any) -> Any:
        self._settle_seconds = 0.1
        return settled(self, *given)

    TopicArchiver._settled = settled_soon  # type: ignore[assignment,method-assign]
    keep_history.LOOK_SECONDS = 0.5  # type: ignore[misc]
    keep_history.APART_SECONDS = steady_time.APART_SECONDS = 0.1  # type: ignore[attr-defined,misc]
    keep_history.STRETCH_BYTES = 200_000  # type: ignore[misc]
    dying(Trimming, "audit", after="audited")
    dying(Trimming, "write_base", after="written")
    dying(TopicsHistory, "append", after="appended")
    dying(KafkaPartition, "delete_below", before="deleting", after="deleted")
    dying(trims, "delete_trimmed", before="entered", after="removed")
if __name__ == "__main__":
    import sys

    main(["start", *sys.argv[1:]])
