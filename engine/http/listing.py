"""What every listing can be asked for, by RabbitMQ's query parameters (rabbit_mgmt_util.erl): `columns`, `sort`,
`sort_reverse`, pages (`page`, `page_size`) and, with a page, `name` (`use_regex`). Without `page` the answer is the
bare list; with it, a page with its counts.

A column or a sort key may be dotted: `message_stats.publish_details.rate`.
"""

import math
from collections.abc import Sequence
from typing import cast

from starlette.datastructures import QueryParams
from starlette.responses import Response

from engine.http.call import ApiError, Call, bad_request, natural, reply
from engine.http.filters import chosen_by

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
Item = dict[str, object]
Columns = dict[str, "Columns | None"]  # None: all of what is there


async def listed(call: Call, items: Sequence[Item]) -> Response:
    query = call.request.query_params
    chosen = ordered(items, query)
    columns = columns_of(query)
    if "page" not in query:
        return reply([cut(item, columns) for item in chosen])
    page, size = whole(query, "page"), whole(query, "page_size")
    size = DEFAULT_PAGE_SIZE if size is None else size
    if page is None or page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        raise ApiError(400, "invalid_pagination_parameters",
                       f"Invalid pagination parameters: page number {page}, page size {size}")  # fmt: skip
    chosen = await named(chosen, query)
    if (page - 1) * size > len(chosen):
        raise ApiError(400, "page_out_of_range",
                       f"Page out of range, page: {page} page size: {size}, len: {len(chosen)}")  # fmt: skip
    shown = [cut(item, columns) for item in chosen[(page - 1) * size : page * size]]
    return reply({
        "total_count": len(items), "item_count": len(shown), "filtered_count": len(chosen), "page": page,
        "page_size": size, "page_count": math.ceil(len(chosen) / size), "items": shown,
    })  # fmt: skip


def single(call: Call, item: Item) -> Response:
    """One of them, cut to its `columns`."""
    return reply(cut(item, columns_of(call.request.query_params)))


async def named(items: Sequence[Item], query: QueryParams) -> list[Item]:
    wanted = query.get("name", "")
    if not wanted:
        return list(items)
    if query.get("use_regex") == "true":
        return await chosen_by(wanted, items, name_of, ignore_case=True)
    return [item for item in items if wanted.lower() in name_of(item).lower()]


def name_of(item: Item) -> str:
    return str(item.get("name", ""))


def ordered(items: Sequence[Item], query: QueryParams) -> list[Item]:
    """They come in order of vhost and name, which stays where `sort` finds no difference; RabbitMQ turns all around."""
    chosen = list(items)
    if query.get("sort"):
        path = query["sort"].split(".")
        chosen.sort(key=lambda item: sort_key(inner(item, path)))
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
