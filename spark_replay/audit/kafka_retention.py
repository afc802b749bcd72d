"""Checks that Kafka keeps the history: it is all there, and it will stay.

Kafka has no hash chain of ours, so these two things can be checked.

A topic that removes its oldest records, or all but the newest of each key, loses history in silence. The audit reports
such settings before it has happened. With an archive the queues' topic may do so: then the archive has to have what
Kafka lacks.
"""

from collections.abc import Sequence

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.topic_tiers import TieredTopic
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.projections.replay import PartitionLog
from rewindmq.spark_replay.audit.checks import Finding

KEPT = "kept"
_KEEPS_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def retention_findings(topics: InKafka, partitions: Sequence[PartitionLog]) -> list[Finding]:
    """Return a finding for each partition, and one for each setting of a topic that loses history."""
    findings = []
    for partition in partitions:
        if isinstance(partition, TieredTopic):
            findings.append(_archived(partition))
            continue
        start, end = partition.start_offset, partition.next_offset
        whole = start == 0
        detail = f"offsets 0 to {end}" if whole else f"begins at offset {start}: the events before it are gone"
        findings.append(Finding(KEPT, whole, partition.name, None if whole else start, None, None, detail))
    return findings + _settings(topics)


def _archived(partition: TieredTopic) -> Finding:
    """Check that the archive has the records that Kafka lacks in a partition, and return the finding.

    Raises NoAnswer."""
    start, end = partition.topic.start_offset, partition.next_offset
    floor = partition.start_offset
    alone = f", the first {start - floor} in the archive alone" if start > floor else ""
    detail = f"offsets {floor} to {end}{alone}"
    try:
        if start:
            partition.below(start)
    except NoAnswer:
        raise
    except LogError as error:
        return Finding(KEPT, False, partition.name, start, None, None, str(error))
    return Finding(KEPT, True, partition.name, None, None, None, detail)


def _settings(topics: InKafka) -> list[Finding]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, KafkaClients, asked
    from rewindmq.engine.log.kafka.topics import RETENTION

    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in (topics.metadata, topics.queues)]
    admin = KafkaClients(topics.bootstrap, dict(topics.settings)).admin()  # it must live until the answers are there
    answers = admin.describe_configs(resources, request_timeout=TIMEOUT_SECONDS)
    findings = []
    for resource, future in answers.items():
        found = asked(f"the settings of {resource.name}", lambda f=future: f.result(TIMEOUT_SECONDS))  # type: ignore[misc]
        for name, wanted in _KEEPS_ALL.items():
            if topics.archive and resource.name == topics.queues and name in RETENTION:
                continue
            value = found[name].value
            if value != wanted:
                detail = f"{name} is {value}, which loses history: set {wanted}"
                findings.append(Finding(KEPT, False, resource.name, None, None, None, detail))
    return findings
