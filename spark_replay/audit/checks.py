"""The checks of an audit: their names in its rows, what each of them says, and advice on what it finds. A finding is a
row of the table AUDIT (columns.py).

Advice is how bad a finding is, and what its reader should do first:

critical    the evidence is not what was written, or part of it is gone
high        the broker decided or counted in another way than the rules say, or a claim of it does not hold
medium      a copy (RocksDB, a snapshot, a ledger) is not what the log says: it can be made anew from the log
low         nothing is wrong yet
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rewindmq.projections.verify import NOT_CHECKED

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
PUBLISHES: Final = "publishes"  # publishes.py
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

# -- advice -----------------------------------------------------------------------------------------------------------

CRITICAL, HIGH, MEDIUM, LOW = "critical", "high", "medium", "low"

_BYTES = (
    "keep the whole data directory as it is, compare the file that is named with a backup or a copy of the seals, and"
    " do not start a broker on it"
)
_BEHIND = (
    "no broker that stops writes such an event: compare the log from the offset on with a backup or a copy of the"
    " seals, find out which program could write to the directory, and do not start a broker on it"
)
_RULE = (
    "read the events around the offset (`history`, `biography --message PARTITION:ID`), and report it with them: the"
    " fold itself may be wrong"
)
_CLAIM = (
    "the events up to the last claim that held are those that the broker had; compare what lies between with a backup"
    " or with seals, and look whether two versions of the broker folded them"
)
ADVICE: dict[str, tuple[str, str]] = {
    "chain": (CRITICAL, _BYTES),
    "seals": (CRITICAL, _BYTES),
    "kept": (CRITICAL, "set the topic to keep everything (retention.ms=-1, retention.bytes=-1, cleanup.policy=delete)"),
    "publishes": (
        CRITICAL,
        "find the session (`security`), keep its client's own records, and report it: the broker lost events, or it"
        " counted them wrongly",
    ),
    "records": (CRITICAL, "find out which program appended the record (`events`), and take its right to write away"),
    "last words": (CRITICAL, _BEHIND),
    "claims": (HIGH, _CLAIM),
    "arrivals": (HIGH, "compare source and target (`biography`): a letter was put in, or taken away, in one of them"),
    "policies": (HIGH, "ask who set the policy (`rewindmq list_policies`, the metadata log), or set it again"),
    "store": (MEDIUM, "stop the broker, move `state` away, and start it: it makes RocksDB anew from the log"),
    "state": (MEDIUM, "stop the broker, move `state` away, and start it: it makes RocksDB anew from the log"),
    "snapshots": (MEDIUM, "move the snapshot that is named and those behind it away: a start, or `cut`, makes others"),
    "ledgers": (MEDIUM, "move the ledger that is named and those behind it away: the next audit makes them anew"),
}


def severity_of(check: str, offset: int | None) -> str:
    """The severity of a finding of this check. Settings of a topic (`kept` without an offset) lose nothing yet."""
    if check == "kept" and offset is None:
        return LOW
    return ADVICE.get(check, (HIGH, _RULE))[0]


def hint_of(check: str) -> str:
    """Return the first step that the reader of a finding of this check should take."""
    return ADVICE.get(check, (HIGH, _RULE))[1]


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of one check.

    `corrupt`: the log itself cannot be read. `ok`: nothing is wrong. Where nothing was compared, `detail` begins with
    NOT_CHECKED and says why."""

    check: str
    ok: bool
    partition: str
    offset: int | None
    queue: str | None
    message_id: int | None
    detail: str
    corrupt: bool = False

    @property
    def severity(self) -> str:
        """The severity as in checks.py; empty for a check that holds."""
        return "" if self.ok else severity_of(self.check, self.offset)

    @property
    def hint(self) -> str:
        """The first step to take; empty for a check that holds."""
        return "" if self.ok else hint_of(self.check)

    @property
    def checked(self) -> bool:
        """Return True if anything was compared."""
        return not self.detail.startswith(NOT_CHECKED)

    def as_json(self) -> dict[str, Any]:
        """Return the finding in a form that JSON has."""
        return {**asdict(self), "checked": self.checked, "severity": self.severity, "hint": self.hint}

    def row(self) -> tuple[Any, ...]:
        """Return the finding as a row of the table AUDIT."""
        return (self.check, self.ok, self.partition, self.offset, self.queue, self.message_id, self.detail)


def of_row(row: Any, corrupt: bool = False) -> Finding:
    """Return the finding in a row of the table AUDIT."""
    return Finding(row.check, row.ok, row.partition, row.offset, row.queue, row.message_id, row.detail, corrupt)


def not_all_ok(findings: Sequence[Finding]) -> bool:
    """Return True if any finding is not ok."""
    return not all(finding.ok for finding in findings)
