"""The known failures of each suite, as regular expressions of test names, with reasons. No other test may fail."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """`tests`: a regular expression that is searched in their names."""

    tests: str
    reason: str
    now_and_then: bool = False  # they pass in other runs


RACE = "a race of the client's own: fails now and then at RabbitMQ 3.10.8, too"
TWO_CLOSERS = (
    "two tasks of the client close the connection when close-ok comes, and the first one's reason stays: fails as often"
    " at RabbitMQ 3.10.8"
)
GETADDRINFO = r"^tests/acceptance/io_services_tests\.py::TestGetaddrinfoWWWGoogleDotComPort80::"
INTERNET = "looks up www.google.com"
BADSSL = "connects to badssl.com"
DURABLE_DEATH = "asks at once for a dead letter, which leaves when its death is durable, some milliseconds later"
PARTITIONS = "basic.qos global over queues of two partitions of the log, which count apiece (not with --partitions 1)"
CHANNEL_MAX = "changes channel_max of a running RabbitMQ in Erlang (rabbitmqctl eval)"
LOOPBACK_USERS = "changes loopback_users of a running RabbitMQ in Erlang (rabbitmqctl eval)"
TEN_MS = "gives a refused login 10 ms, and to verify a password takes longer here (argon2id), on purpose"
NO_SILENCE = (
    "waits a second in vain for the answer to an empty response to PLAIN: the answer comes at once here, on purpose"
)
ANY_TIMEOUT = "RabbitMQ 4.3 compares x-consumer-timeout (passes with --semantics rabbitmq-4.3)"
FORGETS_DURABLE = (
    "the client remembers a passive declaration as one of a transient queue: when it recovers, it declares the durable"
    " queue as transient, and gets 406"
)
CLOSE_TOO_LATE = "wants the channel's close to overtake 990 acks: a race, lost now and then on a busy machine"

KNOWN: dict[str, tuple[Known, ...]] = {
    "aiormq": (
        Known(
            r"^tests/test_connection\.py::test_closing_waiter_cancellation\[amqp(-named)?-(cancel|timeout)-connection-True\]$",
            TWO_CLOSERS,
            now_and_then=True,
        ),
        Known(
            r"^tests/test_connection_futures\.py::test_connection_close_during_publish_drain\[amqp(-named)?\]$",
            TWO_CLOSERS,
            now_and_then=True,
        ),
    ),
    "aio-pika": (
        Known(
            r"^tests/test_memory_leak\.py::test_leak_unclosed_channel\[connect(_robust)?\]$", RACE, now_and_then=True
        ),
        Known(
            r"^tests/test_reconnect_channel_snapshot\.py::test_create_channels_during_reconnect$",
            RACE,
            now_and_then=True,
        ),
    ),
    "amqp": (Known(r"^t/integration/test_rmq\.py::test_tls_(default_certs|no_default_certs_fails)$", BADSSL),),
    "pika": (Known(GETADDRINFO, INTERNET),),
    "pika-tls": (Known(GETADDRINFO, INTERNET),),
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
        Known(r"^ChannelLimitNegotiation\.(channelMaxGreaterThanServerValue|openingTooManyChannels)$", CHANNEL_MAX),
        Known(r"^LoopbackUsers\.loopback$", LOOPBACK_USERS),
    ),
    "php-amqplib": (
        Known(r"^Functional\.Connection\.ConnectionAuthTest\.plain_auth_passwordless_must_fail$", NO_SILENCE),
    ),
    "bunny": (
        Known(
            r"^Bunny::Queue raises an exception when optional argument x-consumer-timeout values do not", ANY_TIMEOUT
        ),
        Known(
            r"^Connection recovery recovers client-named queues declared with passive: true$",
            FORGETS_DURABLE,
            now_and_then=True,
        ),
    ),
    "lapin": (
        Known(
            r"^ack_after_close::(acks_racing_a_broker_channel_close_all|concurrent_acks_cut_short_by_a_broker)_",
            CLOSE_TOO_LATE,
            now_and_then=True,
        ),
    ),
    "rabbitmq-client": (Known(r"^connection\.onConnect: reject$", TEN_MS),),
}
