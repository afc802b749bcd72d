"""Records of the log that were skipped because they make no sense, with offset and reason."""

from starlette.responses import Response

from rewindmq.engine.http.call import Call, bad_request
from rewindmq.engine.http.listing import Item, listed

DEFAULT_COUNT = 100


async def list_quarantined(call: Call) -> Response:
    """Answers GET /api/quarantine?partition=queues-0&count=100.

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
    items: list[Item] = [
        {
            "partition": name,
            "topic": call.broker.config.topic_of(name),
            "offset": each.offset,
            "event": each.event_type or None,
            "reason": each.reason,
        }
        for name, report in reports.items()
        if only in (None, name)
        for each in report.newest(int(asked))
    ]
    return await listed(call, items)
