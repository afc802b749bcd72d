"""Columns, order and pages of listings, by RabbitMQ's query parameters (rabbit_mgmt_util.erl).

`columns`, `sort`, `sort_reverse`, `page`, `page_size`; and with a page `name` and `use_regex`. Without `page` the
answer is the list; with it, one page and its counts.

A column or a sort key may be dotted: `message_stats.publish_details.rate`.
"""

import math
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.datastructures import QueryParams
from starlette.responses import Response

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.http.call import ApiError, Call, bad_request, natural, reply
from rewindmq.engine.http.filters import NameFilter
from rewindmq.engine.http.pieces import answer, array, members
from rewindmq.engine.http.reference.operation import Query
from rewindmq.schemas.views import View

if TYPE_CHECKING:
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.projections.machine.data.queue import Queue

STATS = (
    Query("disable_stats", bool, "Without figures"),
    Query("enable_queue_totals", bool, "With disable_stats: with the numbers of messages all the same"),
)
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
Item = dict[str, object]
T = TypeVar("T")
Columns = dict[str, "Columns | None"]  # None: all columns
NO_FIELDS: Mapping[str, Callable[[Any], object]] = {}


def as_is(source: object) -> object:
    """Return the source itself, which is an item already."""
    return source


async def listed(
    call: Call,
    sources: Sequence[T],
    show: Callable[[T], object] = as_is,
    fields: Mapping[str, Callable[[T], object]] = NO_FIELDS,
) -> Response:
    """Return the answer with an item for each source, made by `show` in slices of the loop's time.

    A long list is never in memory as a whole: to filter or to sort, each item is made once more. `fields`: values of an
    item that are had without it, by name, for lists that are filtered and sorted often."""
    query, work = call.request.query_params, call.work
    columns = columns_of(query)
    total = len(sources)
    chosen = await ordered(work, sources, show, query, fields)
    if "page" not in query:
        return await answer(array(work, shown(work, chosen, show, columns)))
    page, size = whole(query, "page"), whole(query, "page_size")
    size = DEFAULT_PAGE_SIZE if size is None else size
    if page is None or page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        raise ApiError(
            400, "invalid_pagination_parameters", f"Invalid pagination parameters: page number {page}, page size {size}"
        )
    if query.get("name"):
        chosen = await with_name(work, chosen, show, query, fields)
    if (page - 1) * size > len(chosen):
        raise ApiError(
            400, "page_out_of_range", f"Page out of range, page: {page} page size: {size}, len: {len(chosen)}"
        )
    on_page = [item async for item in shown(work, chosen[(page - 1) * size : page * size], show, columns)]
    return await answer(
        members(
            work,
            {
                "total_count": total,
                "item_count": len(on_page),
                "filtered_count": len(chosen),
                "page": page,
                "page_size": size,
                "page_count": math.ceil(len(chosen) / size),
                "items": on_page,
            },
        )
    )


async def shown(
    work: Work, chosen: Sequence[T], show: Callable[[T], object], columns: "Columns | None"
) -> AsyncIterator[object]:
    """Yield the rows, cut to their columns."""
    async for source in work.over(chosen):
        yield cut(show(source), columns)


async def with_name(
    work: Work,
    chosen: Sequence[T],
    show: Callable[[T], object],
    query: QueryParams,
    fields: Mapping[str, Callable[[T], object]],
) -> list[T]:
    """Return the rows whose name matches the parameter `name`."""
    wanted = query["name"]
    fits = NameFilter(wanted, ignore_case=True).fits if query.get("use_regex") == "true" else holding(wanted)
    name_of: Callable[[T], object] = fields.get("name") or (lambda source: fields_of(show(source)).get("name", ""))
    return [source async for source in work.over(chosen) if fits(str(name_of(source)))]


def holding(part: str) -> Callable[[str], bool]:
    """Return a test whether a name contains a text, in upper or lower case."""
    return lambda name: part.lower() in name.lower()


async def queues_in(call: Call, vhosts: Container[str]) -> "list[tuple[PartitionReading, Queue]]":
    """Return the queues of vhosts by name, each with its partition, of the partitions that are folded here."""
    return await call.broker.queues.by_name(call.work, vhosts)


async def listed_queues(call: Call, vhosts: Container[str]) -> "list[tuple[PartitionReading, Listed]]":
    """Return the queues of vhosts by name, of each partition that is not folded here their counters."""
    return await call.broker.queues.listed(call.work, vhosts)


def single(call: Call, item: object) -> Response:
    """Return the answer with one row, cut to its `columns`."""
    return reply(cut(item, columns_of(call.request.query_params)))


async def ordered(
    work: Work,
    sources: Sequence[T],
    show: Callable[[T], object],
    query: QueryParams,
    fields: Mapping[str, Callable[[T], object]],
) -> Sequence[T]:
    """Rows in the order of `sort`; equal rows keep theirs. `sort_reverse` reverses the whole list, as in RabbitMQ."""
    if not query.get("sort"):
        return sources
    path = query["sort"].split(".")
    value_of: Callable[[T], object] = fields.get(query["sort"]) or (lambda source: inner(show(source), path))
    keyed = [(sort_key(value_of(source)), source) async for source in work.over(sources)]
    chosen = await work.in_order(keyed)
    if query.get("sort_reverse") == "true":
        chosen.reverse()
    return chosen


def inner(item: object, path: Sequence[str]) -> object:
    """Return the value at a path of names; None if there is none."""
    for name in path:
        item = fields_of(item).get(name)
    return item


def fields_of(value: object) -> dict[str, object]:
    """Return the fields of an object of JSON; none if it is another value."""
    return value if isinstance(value, dict) else value.__dict__ if isinstance(value, View) else {}


def sort_key(value: object) -> tuple[int, float, str]:
    """Return a key that sorts as RabbitMQ: numbers first, and a missing value is 0."""
    if value is None:
        return (0, 0, "")
    if isinstance(value, bool):
        return (1, value, "")
    if isinstance(value, int | float):
        return (0, value, "")
    return (2, 0, str(value))


def columns_of(query: QueryParams) -> Columns | None:
    """Return the columns that a request asks for; None: all."""
    asked = query.get("columns")
    if not asked:
        return None
    columns: Columns = {}
    for column in asked.split(","):
        at = columns
        names = column.split(".")
        for name in names[:-1]:
            below = at.setdefault(name, {})
            if below is None:  # all columns of it were asked for already
                break
            at = below
        else:
            at[names[-1]] = None
    return columns


def cut(value: object, columns: Columns | None) -> object:
    """Return a row without the columns that were not asked for."""
    if columns is None:
        return value
    if isinstance(value, dict | View):
        fields = fields_of(value)
        return {name: cut(fields[name], below) for name, below in columns.items() if name in fields}
    if isinstance(value, list):
        return [cut(each, columns) for each in value]
    return value


def whole(query: QueryParams, name: str) -> int | None:
    """Return a whole number of the query. Raises ApiError (400)."""
    value = query.get(name)
    if value is None:
        return None
    number = natural(value)
    if number is None:
        raise bad_request("Pagination parameters are invalid")
    return number
