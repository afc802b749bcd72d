"""A node that cannot reach Kafka logs it once a minute."""

import logging

from rewindmq.engine.log.kafka.clients import Seldom


def test_librdkafkas_lines_come_once_a_minute() -> None:
    now = [0.0]
    seldom = Seldom(lambda: now[0])

    def passes(text: str) -> bool:
        return seldom.filter(logging.LogRecord("kafka", logging.ERROR, "", 0, text, (), None))

    line = "FAIL [rdkafka#producer-{}]: {}/1: Connect failed: Connection refused (after {}ms in state CONNECT)"
    assert passes(line.format(1, "10.0.0.7:9092", 0))
    assert not passes(line.format(3, "10.0.0.7:9092", 12))
    assert passes(line.format(1, "10.0.0.8:9092", 0))
    now[0] = 59.9
    assert not passes(line.format(1, "10.0.0.7:9092", 0))
    now[0] = 60.0
    assert passes(line.format(1, "10.0.0.7:9092", 0))
