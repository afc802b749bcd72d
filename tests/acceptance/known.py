"""What does not pass, and why: suite -> tests (a regular expression) and the reason. Nothing else may fail."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """`tests`: a regular expression that is searched in their names."""

    tests: str
    reason: str
    now_and_then: bool = False  # they pass in other runs


RACE = "a race of the client's own: fails now and then at RabbitMQ 3.10.8, too"
DOCKER = "stops and starts RabbitMQ in a container"
INTERNET = "looks up www.google.com"
DURABLE_DEATH = "asks at once for a dead letter, which leaves when its death is durable, some milliseconds later"
PARTITIONS = "basic.qos global over queues of two partitions of the log, which count apiece (not with --partitions 1)"
EVAL = "changes channel_max or loopback_users of a running RabbitMQ in Erlang (rabbitmqctl eval)"
TEN_MS = "gives a refused login 10 ms, and to verify a password takes longer here (argon2id), on purpose"

KNOWN: dict[str, tuple[Known, ...]] = {
    "aiormq": (
        Known(r"test_closing_waiter_cancellation\[.*-connection-True\]$", RACE, now_and_then=True),
        Known(r"test_connection_close_during_publish_drain", RACE, now_and_then=True),
    ),
    "aio-pika": (
        Known(r"test_memory_leak.py::test_leak_unclosed_channel", RACE, now_and_then=True),
        Known(r"::test_create_channels_during_reconnect$", RACE, now_and_then=True),
        Known(
            r"test_robust_recovery.py::test_(restore_topology_and_consumers|pool_consumer_survives_broker_restart)",
            DOCKER,
        ),
    ),
    "amqp": (Known(r"^t/integration/test_rmq.py::test_tls_(no_)?default_certs", "connects to badssl.com"),),
    "pika": (Known("WWWGoogleDotComPort80", INTERNET),),
    "pika-tls": (Known("WWWGoogleDotComPort80", INTERNET),),
    "amqp091-go": (Known(r"^TestDeclareArgsRejectToDeadLetterQueue$", DURABLE_DEATH, now_and_then=True),),
    "java": (
        Known(
            r"^DeadLetterExchange\.deadLetterOn(Reject|Nack)$|^QueueSizeLimit\.requeueWithDlx$",
            DURABLE_DEATH,
            now_and_then=True,
        ),
        Known(
            r"^QosTests\.(permutations|fairness|noAckObeysLimit|limitingMultipleChannels)$",
            PARTITIONS,
            now_and_then=True,
        ),
    ),
    "java-server": (
        Known(r"^ChannelLimitNegotiation\.(channelMaxGreater|openingTooMany)|^LoopbackUsers\.loopback$", EVAL),
    ),
    "rabbitmq-client": (Known(r"^connection\.onConnect: reject$", TEN_MS),),
}
