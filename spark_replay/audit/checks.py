"""The checks of an audit: their names in its rows, and what each of them says."""

from typing import Final

CONSERVATION: Final = "conservation"
LIMITS: Final = "limits"
TTL: Final = "ttl"
DELIVERIES: Final = "deliveries"
ORDER: Final = "order"
SETTLEMENT: Final = "settlement"
DEAD_LETTERS: Final = "dead letters"
CONSUMERS: Final = "consumers"
PREFETCH: Final = "prefetch"
CLAIMS: Final = "claims"
RECORDS: Final = "records"
LAST_WORDS: Final = "last words"
CHECKS = {
    CONSERVATION: "published = gone + ready + unacked, with bytes, by plain counting, at every offset",
    LIMITS: "length limits as arguments and policies say, nothing dropped or refused below them",
    TTL: "nothing delivered after its expiry, nothing expired before",
    DELIVERIES: "redelivered flags and delivery counts as often as messages came back, delivery limits kept",
    ORDER: "first deliveries in the order of publishing, the highest priority first",
    SETTLEMENT: "each ack and reject settles exactly what its consumer held, a purge or removal all that it names",
    CONSUMERS: "messages go only to consumers of their queue, where one is active only to that one, in a pause to none",
    PREFETCH: "no consumer holds more than its prefetch, no channel more than its consumers share",
    DEAD_LETTERS: "dead letters exactly where an exchange is set, numbered without a gap, taken in once by a target",
    CLAIMS: "digests that brokers claimed equal the fold's",
    RECORDS: "every record is a known event",
    LAST_WORDS: "behind the final checkpoint of a broker that stopped stands nothing but what it writes then",
}
