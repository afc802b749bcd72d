"""What does not pass, and why: suite -> test (a regular expression) -> the reason. Nothing else may fail."""

NOW_AND_THEN = "a race of the client's own: fails now and then at RabbitMQ 3.10.8, too"
DOCKER = "stops and starts RabbitMQ in a container"
INTERNET = "looks up www.google.com"
DURABLE_DEATH = "asks at once for a dead letter, which leaves when its death is durable, some milliseconds later"
PARTITIONS = "basic.qos global over queues of two partitions of the log, which count apiece (not with --partitions 1)"
EVAL = "changes channel_max or loopback_users of a running RabbitMQ in Erlang (rabbitmqctl eval)"
TEN_MS = "gives a refused login 10 ms, and to verify a password takes longer here (argon2id), on purpose"

KNOWN: dict[str, dict[str, str]] = {
    "aiormq": {
        r"test_closing_waiter_cancellation\[.*-connection-True\]$": NOW_AND_THEN,
        r"test_connection_close_during_publish_drain": NOW_AND_THEN,
    },
    "aio-pika": {
        r"test_memory_leak.py::test_leak_unclosed_channel": NOW_AND_THEN,
        r"::test_create_channels_during_reconnect$": NOW_AND_THEN,
        r"test_robust_recovery.py::test_(restore_topology_and_consumers|pool_consumer_survives_broker_restart)": DOCKER,
    },
    "amqp": {r"^t/integration/test_rmq.py::test_tls_(no_)?default_certs": "connects to badssl.com"},
    "pika": {"WWWGoogleDotComPort80": INTERNET},
    "pika-tls": {"WWWGoogleDotComPort80": INTERNET},
    "amqp091-go": {r"^TestDeclareArgsRejectToDeadLetterQueue$": DURABLE_DEATH},
    "java": {
        r"^DeadLetterExchange\.deadLetterOn(Reject|Nack)$|^QueueSizeLimit\.requeueWithDlx$": DURABLE_DEATH,
        r"^QosTests\.(permutations|fairness|noAckObeysLimit|limitingMultipleChannels)$": PARTITIONS,
    },
    "java-server": {r"^ChannelLimitNegotiation\.(channelMaxGreater|openingTooMany)|^LoopbackUsers\.loopback$": EVAL},
    "rabbitmq-client": {r"^connection\.onConnect: reject$": TEN_MS},
}
