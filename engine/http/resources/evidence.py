"""Evidence for auditors: quarantined records, the seals of the history, and the audits recorded in it.

    GET /api/quarantine[?partition=][&count=100]                       records that the fold skips
    GET /api/seals                                                     how far each partition is sealed, by which key
    GET /api/seals/{partition}/check[?public_key=PEM]...[&next=0]      a portion of a check of the seals
    GET /api/audits                                                    what the audits before trims found

A check is that of `rewindmq verify_seals`, without copies. It takes about PORTION_SECONDS of the process that reads the
past; repeat the request with `next` until `next` is null. `public_key` may be given several times; without it
signatures are not checked, and `signatures` is false. The node keeps no result: a person who can change the log could
also change a result that is stored beside it.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.http.call import Call, bad_request, not_found
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import MONITORING, Folds, Query, operation
from rewindmq.engine.http.resources.outcomes import found
from rewindmq.engine.http.resources.past import number_of
from rewindmq.engine.http.shapes.history import (
    MOST_HARMS,
    HarmView,
    QuarantinedRecordView,
    SealCheckView,
    SealedPartitionsView,
    SealedView,
    TrimAuditView,
)
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.rewind.outcomes import Deadline

if TYPE_CHECKING:
    from rewindmq.engine.keeping.seals.seal import Keys

# Seals are imported where they are asked for: with them comes cryptography, which a broker seldom needs.
DEFAULT_COUNT = 100  # of quarantined records
PORTION_SECONDS = 1.0
MOST_KEYS = 20


@operation(
    "Lists the newest records that the fold skips",
    folds=Folds.NAMED,
    who=MONITORING,
    query=(
        Query("partition", str, "Only of this partition"),
        Query("count", int, "Records of each partition, 100 by default"),
    ),
    listing=QuarantinedRecordView,
)
async def list_quarantined(call: Call) -> Response:
    """Answer GET /api/quarantine?partition=queues-0&count=100.

    It lists the newest `count` records of each partition (10,000 are kept of each), by partition and offset. All nodes
    that have read as far list the same records."""
    call.require("monitoring")
    query = call.request.query_params
    asked = query.get("count", str(DEFAULT_COUNT))
    if not (asked.isascii() and asked.isdigit() and len(asked) <= 9):
        raise bad_request("count is a whole number")
    reports = call.broker.quarantined
    only = query.get("partition")
    if only is not None and only not in reports:
        raise bad_request(f"there is no partition {only}; there are {', '.join(reports)}")
    for partition in call.broker.partitions:
        if only in (None, partition.name):
            await partition.enter()
    reports = call.broker.quarantined  # a partition may have begun with another state
    topic_of = call.broker.config.topic_of
    items = [
        QuarantinedRecordView.of(each, partition=name, topic=topic_of(name), event=each.event_type or None)
        for name, report in reports.items()
        if only in (None, name)
        for each in report.newest(int(asked))
    ]
    return await listed(call, items)


@operation(
    "Shows how far each partition is sealed, and by which key",
    folds=Folds.NONE,
    who=MONITORING,
    answer=SealedPartitionsView,
    errors=(429,),
)
async def list_seals(call: Call) -> Response:
    """Answer GET /api/seals."""
    call.require("monitoring")
    return await found(call, found_seals)


def found_seals(history: Location) -> SealedPartitionsView:
    """Return the rows, in the shape of a list. Raises LogError."""
    from rewindmq.engine.rewind.seals import sealed

    items = [SealedView.of(each) for each in sealed(history)]
    count = len(items)
    return SealedPartitionsView(
        total_count=count, item_count=count, filtered_count=count, page=1, page_size=count, page_count=1, items=items
    )


@operation(
    "Checks a portion of the seals of a partition",
    folds=Folds.NONE,
    who=MONITORING,
    query=(
        Query("public_key", list[str], "A public key as PEM; without any, signatures are not checked"),
        Query("next", int, "The place where the portion before ended"),
    ),
    answer=SealCheckView,
    errors=(429,),
)
async def check_seals(call: Call) -> Response:
    """Answer GET /api/seals/{partition}/check."""
    call.require("monitoring")
    texts = call.request.query_params.getlist("public_key")
    if len(texts) > MOST_KEYS:
        raise bad_request(f"at most {MOST_KEYS} keys")
    from rewindmq.engine.keeping.seals.seal import BadFile

    try:
        named_keys(texts)
    except BadFile as error:
        raise bad_request(str(error)) from None
    first = number_of(call, "next", 0)
    await call.durable()
    find = partial(found_check, call.segment("partition"), texts, first)
    return await found(call, find)


def named_keys(texts: Sequence[str]) -> "Keys":
    """Return the keys in the query. Raises BadFile."""
    from rewindmq.engine.keeping.seals.seal import keys_in

    return keys_in({f"public_key {number}": text.encode() for number, text in enumerate(texts, 1)})


def found_check(partition: str, texts: Sequence[str], first: int, history: Location) -> SealCheckView:
    """Return a portion. `texts`: public keys, which cannot be sent to another process as such.

    Raises LogError, ApiError (404)."""
    from rewindmq.engine.rewind.seals import NoSuchPartition, check

    keys = named_keys(texts) or None
    try:
        portion = check(history, partition, keys, first, Deadline(PORTION_SECONDS))
    except NoSuchPartition as error:
        raise not_found(str(error), "not_found") from None
    return SealCheckView.of(
        portion,
        partition=partition,
        checked=portion.behind,
        next=portion.behind if portion.behind < portion.stretches else None,
        signatures=keys is not None,
        harms=[HarmView.of(each) for each in portion.harms[:MOST_HARMS]],
        more=max(0, len(portion.harms) - MOST_HARMS),
        notes=portion.notes[:MOST_HARMS],
    )


@operation("Lists the audits of what was trimmed", folds=Folds.NONE, who=MONITORING, listing=TrimAuditView)
async def list_audits(call: Call) -> Response:
    """Answer GET /api/audits."""
    call.require("monitoring")
    floors = call.broker.topology.history.floors
    return await listed(call, [TrimAuditView.of(floors[name]) for name in sorted(floors)])
