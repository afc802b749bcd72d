"""What every listing can be asked for, by RabbitMQ's query parameters (rabbit_mgmt_util.erl): `columns`, `sort`,
`sort_reverse`, pages (`page`, `page_size`) and, with a page, `name` (`use_regex`). Without `page` the answer is the
bare list; with it, a page with its counts.

A column or a sort key may be dotted: `message_stats.publish_details.rate`.
"""

import math
from collections.abc import AsyncIterator, Callable, Container, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from starlette.datastructures import QueryParams
from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, natural, reply
from rewindmq.engine.http.filters import NameFilter
from rewindmq.engine.http.pieces import answer, array, members
from rewindmq.engine.runtime.loop_share import Work

if TYPE_CHECKING:
    from rewindmq.engine.runtime.partition import Partition
    from rewindmq.projections.machine.data.queue import Queue

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
Item = dict[str, object]
T = TypeVar("T")
Columns = dict[str, "Columns | None"]  # None: all of what is there


def as_is(source: object) -> Item:
    """Of sources that are items."""
    return cast(Item, source)


async def listed(call: Call, sources: Sequence[T], show: Callable[[T], Item] = as_is) -> Response:
    """Each source as `show` makes an item of it, in slices of the loop's time. A long list is never in memory as a
    whole: what is filtered or sorted is shown twice."""
    query, work = call.request.query_params, call.work
    columns = columns_of(query)
    total = len(sources)
    chosen = await ordered(work, sources, show, query)
    if "page" not in query:
        return await answer(array(work, shown(work, chosen, show, columns)))
    page, size = whole(query, "page"), whole(query, "page_size")
    size = DEFAULT_PAGE_SIZE if size is None else size
    if page is None or page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        raise ApiError(
            400, "invalid_pagination_parameters", f"Invalid pagination parameters: page number {page}, page size {size}"
        )
    if query.get("name"):
        chosen = await with_name(work, chosen, show, query)
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
    work: Work, chosen: Sequence[T], show: Callable[[T], Item], columns: "Columns | None"
) -> AsyncIterator[Item]:
    async for source in work.over(chosen):
        yield cut(show(source), columns)


async def with_name(work: Work, chosen: Sequence[T], show: Callable[[T], Item], query: QueryParams) -> list[T]:
    """Those whose `name` is asked for."""
    wanted = query["name"]
    fits = NameFilter(wanted, ignore_case=True).fits if query.get("use_regex") == "true" else holding(wanted)
    return [source async for source in work.over(chosen) if fits(str(show(source).get("name", "")))]


def holding(part: str) -> Callable[[str], bool]:
    return lambda name: part.lower() in name.lower()


async def queues_in(call: Call, vhosts: Container[str]) -> "list[tuple[Partition, Queue]]":
    return await call.broker.queues.by_name(call.work, vhosts)


def single(call: Call, item: Item) -> Response:
    """One of them, cut to its `columns`."""
    return reply(cut(item, columns_of(call.request.query_params)))


async def ordered(work: Work, sources: Sequence[T], show: Callable[[T], Item], query: QueryParams) -> Sequence[T]:
    """They come in order of vhost and name, which stays where `sort` finds no difference; RabbitMQ turns all around."""
    if not query.get("sort"):
        return sources
    path = query["sort"].split(".")
    keyed = [(sort_key(inner(show(source), path)), source) async for source in work.over(sources)]
    chosen = await work.in_order(keyed)
    if query.get("sort_reverse") == "true":
        chosen.reverse()
    return chosen


def inner(item: object, path: Sequence[str]) -> object:
    """None where there is nothing."""
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def sort_key(value: object) -> tuple[int, float, str]:
    """Numbers before all else, and what has no value is 0, as in RabbitMQ."""
    if value is None:
        return (0, 0, "")
    if isinstance(value, bool):
        return (1, value, "")
    if isinstance(value, int | float):
        return (0, value, "")
    return (2, 0, str(value))


def columns_of(query: QueryParams) -> Columns | None:
    asked = query.get("columns")
    if not asked:
        return None
    columns: Columns = {}
    for column in asked.split(","):
        at = columns
        names = column.split(".")
        for name in names[:-1]:
            below = at.setdefault(name, {})
            if below is None:  # all of it was asked for already
                break
            at = below
        else:
            at[names[-1]] = None
    return columns


def cut(value: Item, columns: Columns | None) -> Item:
    return cast(Item, _cut(value, columns))


def _cut(value: object, columns: Columns | None) -> object:
    if columns is None:
        return value
    if isinstance(value, dict):
        return {name: _cut(value[name], below) for name, below in columns.items() if name in value}
    if isinstance(value, list):
        return [_cut(each, columns) for each in value]
    return value


def whole(query: QueryParams, name: str) -> int | None:
    value = query.get(name)
    if value is None:
        return None
    number = natural(value)
    if number is None:
        raise bad_request("Pagination parameters are invalid")
    return number
