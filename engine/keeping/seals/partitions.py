"""The partitions of a history with their seals, wherever the history is."""

from collections.abc import Sequence

from rewindmq.engine.keeping.location import FIRST_ANSWER_SECONDS, InArchive, InDirectory, Location
from rewindmq.engine.keeping.seals.in_files import segmented
from rewindmq.engine.keeping.seals.sealer import Sealable


def sealable_partitions(location: Location) -> Sequence[Sealable]:
    """Return the partitions of a history, with their seals; none of an archive, which holds no seals.

    Raises LogError when there is no log, NoAnswer, KafkaNotInstalled."""
    if isinstance(location, InDirectory):
        return segmented(location.data)
    if isinstance(location, InArchive):
        return []
    from rewindmq.engine.keeping.seals.in_topic import in_topics

    log = location.connect()
    log.clients.require_answer(FIRST_ANSWER_SECONDS)
    return in_topics(log, location.archive_url)
