"""The checks of an audit's fold, each by its name in the findings, with what it holds."""

from rewindmq.spark_replay.audit.ledger import (
    CONSERVATION,
    DEAD_LETTERS,
    DELIVERIES,
    LIMITS,
    ORDER,
    SETTLEMENT,
    TTL,
)

CLAIMS, RECORDS, PREFETCH, CONSUMERS = "claims", "records", "prefetch", "consumers"
LAST_WORDS = "last words"
CHECKS = {
    CONSERVATION: "published = gone + ready + unacked, with bytes, by plain counting, at every offset",
    LIMITS: "length limits as arguments and policies say, nothing dropped or refused below them",
    TTL: "nothing delivered after its expiry, nothing expired before",
    DELIVERIES: "redelivered flags and delivery counts as often as messages came back, delivery limits kept",
    ORDER: "first deliveries in the order of publishing, the highest priority first",
    SETTLEMENT: "each ack and reject settles exactly what its consumer held, a purge all that is ready",
    CONSUMERS: "messages go only to consumers of their queue, and where one of them is active only to that one",
    PREFETCH: "no consumer holds more than its prefetch, no channel more than its consumers share",
    DEAD_LETTERS: "dead letters exactly where an exchange is set, numbered without a gap, taken in once by a target",
    CLAIMS: "digests that brokers claimed equal the fold's",
    RECORDS: "every record is a known event",
    LAST_WORDS: "behind the final checkpoint of a broker that stopped stands nothing but what it writes then",
}
