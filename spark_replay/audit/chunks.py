"""Audits partitions from ledger to ledger (ledger_files.py): all chunks at the same time, a Spark task each.

    nothing ->events-> ledger 1     ledger 1 ->events-> ledger 2     ...     ledger n ->events-> the end

Each chunk believes the ledger at its start. It has to arrive at the ledger with which the next chunk begins, and at the
snapshot beside it. So together the chunks prove as much as one long audit. A snapshot without a ledger is passed, and
gets one. So the first audit of a directory is one task a partition, the next one is in chunks, and an audit that was
cut short continues from the last ledger that it wrote. `since_last`: only the last chunk is folded, and the ledger
before it is believed.

If a ledger or a snapshot does not hold, the partition is audited once more from its beginning, without ledgers.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.replay import PartitionLog, beginning, decoder_for
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots
from rewindmq.projections.verify import NOT_CHECKED
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.dead_letter_join import NOTED, LetterRows
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.ledger_files import BadLedger, Ledgers
from rewindmq.spark_replay.audit.policies import rows_for_driver
from rewindmq.spark_replay.audit.publishes import Mark, PublishTally
from rewindmq.spark_replay.fold import at_snapshot, groups_up_to
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.location.log import partition_of
from rewindmq.spark_replay.location.ranges import OffsetRange
from rewindmq.spark_replay.snapshots.verify import SNAPSHOTS, StateSummary, compare

if TYPE_CHECKING:
    import pyarrow as pa

LEDGERS = "ledgers"


@dataclass(frozen=True, slots=True)
class AuditChunk(OffsetRange):
    """Events `start` to `end`, past the snapshots at `meets`; from the ledger at `start`, or from the start of the log.

    `last`: it is the last chunk of its partition. `letters_before`: it also yields the kept letters of earlier chunks,
    as no other chunk does."""

    meets: tuple[int, ...] = ()
    last: bool = False
    letters_before: bool = False


def plan_audit(
    external: Snapshots, ends: Sequence[OffsetRange], reach: dict[str, int], since_last: bool
) -> list[AuditChunk]:
    """Return the chunks of each partition, up to its end.

    Only ledgers and snapshots up to `reach` are met: letters behind it do not count."""
    chunks: list[AuditChunk] = []
    for end in ends:
        met = [at for at in external.offsets(end.partition) if end.start < at <= reach[end.partition]]
        kept = set(Ledgers(external, end.partition).offsets())
        begin = end.start
        starts = [begin, *(at for at in met if at in kept and at < end.end)]
        if since_last:
            starts = starts[-1:]
        for number, start in enumerate(starts):
            last = number + 1 == len(starts)
            stop = end.end if last else starts[number + 1]
            inside = tuple(at for at in met if start < at <= stop)
            chunks.append(AuditChunk(end.partition, start, stop, inside, last, since_last and start > begin))
    return chunks


def audit_chunk(
    chunk: AuditChunk,
    location: Location,
    external: Snapshots,
    reach: dict[str, int],
    marks: Mapping[str, Sequence[Mark]],
) -> "Iterator[pa.RecordBatch]":
    """Yield rows of AUDIT and of LETTERS, in a Spark task. `marks`: as of `SessionCounts.marks`, by partition."""
    log = partition_of(location, chunk.partition)
    ledgers, letter_rows = Ledgers(external, chunk.partition), LetterRows(chunk.partition, reach[chunk.partition])
    try:
        product = _begun(log, external, ledgers, chunk, letter_rows)
        if chunk.letters_before:
            before = ledgers.letters(chunk.start)
            letter_rows.count += sum(batch.num_rows for batch in before)
            yield from before
    except (BadLedger, SnapshotError) as error:
        yield _row(LEDGERS, False, chunk, chunk.start, f"cannot be used: {error}")
        return
    product.publishes = tally = PublishTally(marks[chunk.partition], chunk.start)
    if chunk.letters_before:
        yield from _found_before(product, chunk)
    for stop in dict.fromkeys((*chunk.meets, chunk.end)):
        letters: list[pa.RecordBatch] = []
        groups = groups_up_to(log, product.machine.next_offset, stop)
        for batch in fold_events(_Unfinished(product), product.machine, groups, decoder_for(log)):
            if batch.schema.equals(columns.LETTERS):
                letters.append(batch)
            yield batch
        if stop in chunk.meets:
            from_base = chunk.start == log.start_offset > 0
            yield from _met(product, chunk, external, ledgers, letters, from_base)
    if chunk.last:
        yield from product.take(True)
        yield batch_of(rows_for_driver(product), columns.AUDIT)
    yield batch_of(tally.rows(chunk.partition, chunk.end), columns.AUDIT)
    yield _row(NOTED, True, chunk, None, str(letter_rows.count))


class _Unfinished:
    """A product that continues: its end is not requested yet."""

    def __init__(self, product: AuditProduct) -> None:
        self.product = product
        self.run = product.run
        self.begin = product.begin
        self.before = product.before
        self.event = product.event
        self.undecodable = product.undecodable

    def take(self, last: bool) -> "Iterator[pa.RecordBatch]":
        return self.product.take(False)


def _begun(
    log: PartitionLog, external: Snapshots, ledgers: Ledgers, chunk: AuditChunk, letter_rows: LetterRows
) -> AuditProduct:
    if chunk.start == log.start_offset:
        product = AuditProduct(chunk.partition, letter_rows)
        product.begin(beginning(log))
        return product
    return ledgers.begin(at_snapshot(external, log, chunk.start), letter_rows)


def _met(
    product: AuditProduct,
    chunk: AuditChunk,
    external: Snapshots,
    ledgers: Ledgers,
    letters: "Sequence[pa.RecordBatch]",
    from_base: bool,
) -> "Iterator[pa.RecordBatch]":
    """Compare the audit with the snapshot at which it stands, and with the ledger beside it.

    A missing ledger is written. `from_base`: the chunk began with a base, which knows less than a ledger that began
    below it. So no ledger is compared, and none is written below another one."""
    offset = product.machine.next_offset
    wrong = list(compare(StateSummary.of(product.machine), external, chunk.partition, offset, chunk.start))
    if wrong:
        yield batch_of(wrong, columns.AUDIT)
    elif from_base and not chunk.last:
        return
    elif not ledgers.has(offset):
        ledgers.take(product, letters)
    elif (other := ledgers.differs(product)) is not None:
        since = f"the ledger at offset {chunk.start}" if chunk.start else "nothing"
        detail = f"the events from {since} on do not lead to the ledger at offset {offset}: other is {other}"
        yield _row(LEDGERS, False, chunk, offset, detail)


def _found_before(product: AuditProduct, chunk: AuditChunk) -> "Iterator[pa.RecordBatch]":
    """Yield the numbers of findings of earlier audits up to here; they are not listed again."""
    for check, count in product.failures.items():
        if count:
            detail = f"{count} found before offset {chunk.start} by an earlier audit: audit all of it to list them"
            yield batch_of([(check, False, chunk.partition, None, None, None, detail)], columns.AUDIT)


def _row(check: str, ok: bool, chunk: AuditChunk, offset: int | None, detail: str) -> "pa.RecordBatch":
    return batch_of([(check, ok, chunk.partition, offset, None, None, detail)], columns.AUDIT)


def convicted(rows: Sequence[Any]) -> dict[str, int]:
    """Return the partitions to be audited once more, without ledgers, and the first offset in each that did not hold.

    Findings of a chunk that began there are worth nothing."""
    found: dict[str, int] = {}
    for row in rows:
        if row.check in (LEDGERS, SNAPSHOTS) and not row.ok:
            found[row.partition] = min(row.offset, found.get(row.partition, row.offset))
    return found


def is_first(row: Any, doubtful: Mapping[str, int]) -> bool:
    """Return True if the row names the first ledger or snapshot of its partition that does not hold."""
    return row.check in (LEDGERS, SNAPSHOTS) and not row.ok and row.offset == doubtful[row.partition]


def in_sum(chunks: Sequence[AuditChunk], doubtful: Container[str]) -> list[Finding]:
    """Return a finding for each partition whose ledgers and snapshots hold, with how much was looked at."""
    found = []
    for name in dict.fromkeys(chunk.partition for chunk in chunks if chunk.partition not in doubtful):
        of_partition = [chunk for chunk in chunks if chunk.partition == name]
        met = sum(len(chunk.meets) for chunk in of_partition)
        first, many = of_partition[0].start, len(of_partition)
        detail = "" if met else f"{NOT_CHECKED}there is none yet; "
        detail += f"{met} snapshots and ledgers from offset {first} on, in {many} chunk{'s' * (many > 1)}"
        found += [Finding(check, True, name, None, None, None, detail) for check in (SNAPSHOTS, LEDGERS)]
    return found
