"""The points at which tests interrupt the product (rewindmq/failpoints.py), and how a test arms one.

    with armed("trim.before_event", killed), pytest.raises(Killed):
        trim(...)

An action may raise, wait, or do what another program would do at this moment. A test whose point is not reached fails.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rewindmq import failpoints

Action = Callable[..., object]
# By room and moment, with the subject that the action is given, if there is one.
POINTS = {
    "archive.before_manifests": "an archiver knows which partitions there are, and has not read their manifests",
    "archive.before_listing": "an archiver has read the manifests, and has not listed the closed segments",
    "copy.before_end": "a copy of a snapshot is in Kafka but for the record that makes it whole",
    "cut.before_file": "(path) a segment or a sidecar is about to be removed from the local log",
    "expiry.after_search": "every queue was searched for bodies of days that are over",
    "kafka.after_reports": "reports of appended records have arrived in the thread that takes them",
    "kafka.before_judgement": "the thread that reads back is about to judge whether Kafka is in trouble",
    "kafka.before_topics": "missing topics are about to be made",
    "moves.before_declaration": "(moves) a queue is about to be declared in its new partition",
    "moves.before_declare": "(moves) a queue's consumers may not have left its old partition",
    "moves.before_drain": "(moves) a queue is in its new partition, and its messages are not",
    "recovery.before_end": "a recovered directory is a log, and recovery.json is still there",
    "recovery.before_layout": "all partitions are recovered, and no broker takes the directory for a log",
    "recovery.before_proof": "recovered topics have all records, and were not read back",
    "recovery.before_settings": "recovered topics are proven, and no node may start on them",
    "repair.before_look": "(names) a look for unfinished work is about to be at these names",
    "repartition.before_placing": "(repartition) names are held, and queues are about to be placed by the new number",
    "trim.after_cut": "segments and stretches below the floor are gone, later leftovers are not",
    "trim.after_end": "nothing is left to do for the trim of a partition",
    "trim.after_event": "a HistoryTrimmed is in the metadata topic, and not in the archive",
    "trim.before_base": "what goes was audited, and no base is written",
    "trim.before_end": "the event is durable, and nothing has been removed",
    "trim.before_entry": "Kafka has dropped what lies below the floor, and the manifest does not say so",
    "trim.before_event": "the base is proven, also in the archive, and the event is not logged",
    "trim.before_objects": "the archived history begins at the floor, and objects below it are there",
    "trim.before_proof": "the base is written, and neither proven nor archived",
    "trim.before_topic": "the archive has the base, and Kafka has the records below the floor",
    "verify.after_listing": "a verification has listed the segments, and has opened none",
}


def arm(name: str, action: Action) -> None:
    """Have this process act at a point from now on. For processes of their own, which end with the test."""
    if name not in POINTS:
        raise LookupError(f"no point is called {name}")
    assert name not in failpoints.armed, f"{name} is armed already"
    failpoints.armed[name] = action


@contextmanager
def armed(name: str, action: Action) -> Iterator[None]:
    """Act at a point within the block, which has to reach it."""
    times = 0

    def acting(*subject: object) -> None:
        nonlocal times
        times += 1
        action(*subject)

    arm(name, acting)
    try:
        yield
    finally:
        del failpoints.armed[name]
    assert times, f"the point {name} was not reached"


def once(action: Action) -> Action:
    """Return the action for the first time a point is reached; later nothing happens there."""
    actions = [action]
    return lambda *subject: actions.pop()(*subject) if actions else None
