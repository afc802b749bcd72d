"""What every listing can be asked for: `columns`, `sort`, `sort_reverse`, `name` (`use_regex`) and pages, by RabbitMQ's
query parameters. Without `page` the answer is the bare list; with it, a page with its counts.
"""

import math
import re
from collections.abc import Sequence

from starlette.datastructures import QueryParams
from starlette.responses import Response

from engine.http.call import Call, bad_request, reply

MAX_PAGE_SIZE = 500  # as in RabbitMQ
Item = dict[str, object]


def listed(call: Call, items: Sequence[Item]) -> Response:
    query = call.request.query_params
    total = len(items)
    chosen = named(items, query)
    sort = query.get("sort")
    if sort:
        chosen.sort(key=lambda item: sort_key(item, sort), reverse=query.get("sort_reverse") == "true")
    columns = columns_of(query)
    if "page" not in query:
        return reply([cut(item, columns) for item in chosen])
    page, size = whole(query, "page", 1), whole(query, "page_size", 100)
    pages = max(1, math.ceil(len(chosen) / size)) if size else 1
    if page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        raise bad_request("Pagination parameters are invalid")
    if page > pages:
        raise bad_request(f"page_out_of_range: page {page} of {pages}")
    shown = [cut(item, columns) for item in chosen[(page - 1) * size : page * size]]
    return reply({
        "total_count": total, "item_count": len(shown), "filtered_count": len(chosen), "page": page,
        "page_size": size, "page_count": pages, "items": shown,
    })  # fmt: skip


def named(items: Sequence[Item], query: QueryParams) -> list[Item]:
    wanted = query.get("name", "")
    if not wanted:
        return list(items)
    if query.get("use_regex") != "true":
        return [item for item in items if wanted.lower() in str(item.get("name", "")).lower()]
    try:
        pattern = re.compile(wanted, re.IGNORECASE)
    except re.error as error:
        raise bad_request(f"name is not a regular expression: {error}") from None
    return [item for item in items if pattern.search(str(item.get("name", "")))]


def columns_of(query: QueryParams) -> list[str] | None:
    asked = query.get("columns")
    return [column.split(".")[0] for column in asked.split(",")] if asked else None


def cut(item: Item, columns: list[str] | None) -> Item:
    return item if columns is None else {column: item[column] for column in columns if column in item}


def sort_key(item: Item, column: str) -> tuple[int, float, str]:
    """Numbers before texts, what has no value first."""
    value = item.get(column)
    if value is None:
        return (0, 0, "")
    if isinstance(value, bool | int | float):
        return (1, value, "")
    return (2, 0, str(value))


def whole(query: QueryParams, name: str, default: int) -> int:
    value = query.get(name, str(default))
    if not (value.isascii() and value.isdigit()):
        raise bad_request("Pagination parameters are invalid")
    return int(value)
