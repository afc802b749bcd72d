"""The books of an audit of one partition: an `Account` for each queue, and what was found.

`AuditProduct` (fold.py) keeps them; the rules of dead letters, consumers, operators and bases read and change them.
"""

from rewindmq.projections.claims import Claims
from rewindmq.projections.clean_stops import CleanStops
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.values import Policy
from rewindmq.spark_replay.audit.checks import CHECKS
from rewindmq.spark_replay.audit.consumers import Attached
from rewindmq.spark_replay.audit.dead_letter_join import LetterRows
from rewindmq.spark_replay.audit.ledger import Account
from rewindmq.spark_replay.audit.prefetch import Prefetches

LISTED = 100
_Row = tuple[str, bool, str, int | None, str | None, int | None, str]


class Books:
    """The books. `letter_rows`: collects dead letters, for the join with other partitions."""

    def __init__(self, partition: str, letter_rows: LetterRows | None = None) -> None:
        self.partition = partition
        self.letter_rows = letter_rows
        self.rows: list[_Row] = []
        self.failures = dict.fromkeys(CHECKS, 0)
        self.accounts: dict[tuple[str, str], Account] = {}
        self.account_of: dict[Queue, Account] = {}  # the same accounts, by the queue that each is of
        self.prefetches = Prefetches()
        self.attached = Attached()
        self.letters: dict[int, int] = {}  # queue_id -> number of its last dead letter
        self.leaving: dict[
            tuple[int, int], Carried
        ] = {}  # (queue_id, message) that moves on in this event: what it keeps
        self.owed: dict[tuple[int, int], Account] = {}  # (queue_id, message) that died in this event, no letter yet
        self.offset = 0
        self.now_ms = 0
        self.ahead_ms = 0  # how far the clock is ahead of the timestamps, since a ClockSet
        self.least_ms = 0
        self.events = 0
        self.claims = Claims()
        self.words = CleanStops()
        self.lost: dict[int, None] = {}  # epochs of lost nodes: events that still come from them do not happen
        self.policies: dict[tuple[str, Policy], int] = {}  # (vhost, policy) -> the first offset where it was in force
        self.quarantined = 0
        self.first_quarantined = -1
        self.quarantine = QuarantineReport()  # the records that were skipped in this run, for the store
        self.at_end = False
        self.told: set[tuple[str, str | None, int | None]] = set()  # at the ends of an audit that continues
        self.unlisted = dict.fromkeys(CHECKS, 0)

    @property
    def log_ms(self) -> int:
        """The time now, as timestamps say it."""
        return self.now_ms - self.ahead_ms

    def fail(self, check: str, queue: str | None, message_id: int | None, detail: str) -> None:
        """Add a finding; after LISTED findings of one check only count it."""
        if self.at_end:
            if (check, queue, message_id) in self.told:
                return
            self.told.add((check, queue, message_id))
        self.failures[check] += 1
        if self.failures[check] <= LISTED:
            self.rows.append((check, False, self.partition, self.offset, queue, message_id, detail))

    def open_account(self, account: Account) -> Account:
        """Keep an account from now on."""
        self.accounts[account.key] = self.account_of[account.queue] = account
        return account
