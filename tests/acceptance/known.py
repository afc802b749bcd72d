"""What does not pass, and why: suite -> test (a regular expression) -> the reason. Nothing else may fail."""

KNOWN: dict[str, dict[str, str]] = {
    "amqp": {
        r"^t/integration/test_rmq.py::test_tls_(no_)?default_certs": "connects to badssl.com, where it can be reached",
    },
    "pika": {"WWWGoogleDotComPort80": "looks up www.google.com, where there is an Internet"},
    "pika-tls": {"WWWGoogleDotComPort80": "looks up www.google.com, where there is an Internet"},
    "amqp091-go": {
        r"^TestDeclareArgsRejectToDeadLetterQueue$":
            "asks ten times at once for a dead letter, which leaves when its death is durable, some milliseconds later",
    },
}  # fmt: skip
