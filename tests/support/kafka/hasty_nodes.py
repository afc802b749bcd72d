"""Nodes on Kafka whose history is archived and trimmed several times a second, in small stretches; the process beside a
node dies where a test says.

The file that REWINDMQ_TEST_DIE names has a step of a trim (tests/support/hasty_trims.py): audited, written, appended,
deleting, deleted, entered, removed.
"""

from functools import partialmethod

from rewindmq.engine.cli.main import main
from rewindmq.engine.keeping import keep_history
from rewindmq.engine.keeping.archive import pack
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.log import chain
from rewindmq.engine.log.embedded import steady_time
from tests.support.hasty_trims import arm_dying
from tests.support.running import RunningBroker


class HastyNode(RunningBroker):
    """A node that archives every hundred records."""

    program = ("-m", "tests.support.kafka.hasty_nodes")


if __name__ in ("__main__", "__mp_main__"):
    pack.STRETCH_RECORDS = 100  # type: ignore[misc]
    chain.RUN = 10  # as the test has it that reads what these nodes archive
    TopicArchiver.__init__ = partialmethod(TopicArchiver.__init__, settle_seconds=0.1)  # type: ignore[assignment,method-assign]
    keep_history.LOOK_SECONDS = 0.5  # type: ignore[misc]
    keep_history.APART_SECONDS = steady_time.APART_SECONDS = 0.1  # type: ignore[attr-defined,misc]
    keep_history.STRETCH_BYTES = 200_000  # type: ignore[misc]
    arm_dying("trim.before_base", "audited")
    arm_dying("trim.before_event", "written")
    arm_dying("trim.after_event", "appended")
    arm_dying("trim.before_topic", "deleting")
    arm_dying("trim.before_entry", "deleted")
    arm_dying("trim.before_objects", "entered")
    arm_dying("trim.after_end", "removed")
if __name__ == "__main__":
    import sys

    main(["start", *sys.argv[1:]])
