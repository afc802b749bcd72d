"""Who has which duties: what needs no Kafka."""

import threading

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.owners import KafkaOwners


def test_a_thread_that_ends_is_told_of() -> None:
    """A node that would never hear of its duties again must not go on as if nothing were."""
    told: list[LogError] = []
    ended = threading.Event()

    def failed(error: LogError) -> None:
        told.append(error)
        ended.set()

    owners = KafkaOwners(KafkaClients("127.0.0.1:1", {"no.such.setting": "1"}), "group", "topic", print, failed)
    owners.start()
    assert ended.wait(60)
    owners.join(60)
    assert "no.such.setting" in str(told[0])
