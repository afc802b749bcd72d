"""The demo's page: a purge and its undo, one message's life, what another limit would have kept, and every queue.

All of it comes from Spark's view of the log (history, biography, what-if). One HTML file, without anything outside of
it, so that it can be sent to somebody; it is as readable on a phone as on a desk.
"""

import html
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.demo import charts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET_MS = 500
COLOURS = {
    "acked": "#4c9f70",
    "expired": "#b8b8b8",
    "maxlen": "#e0a030",
    "delivery_limit": "#b03060",
    "rejected": "#d06040",
    "purged": "#7040a0",
}
OTHER = "#606060"
PURGED_QUEUE = "cancelled"
LIMIT = 60  # of the policy that demo.py sets
OTHER_LIMITS = (120, 300, 1000)
FLIGHTS_SHOWN = 12

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>RewindMQ demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ color-scheme: light }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
h1 {{ font-size: 1.7rem; line-height: 1.2 }} h2 {{ margin-top: 2.5rem; font-size: 1.3rem; line-height: 1.25 }}
code {{ background: #f3f3f3; padding: 0 .25em; overflow-wrap: anywhere }}
svg {{ display: block; width: 100% }}
.depth {{ fill: #9cc4e4; stroke: #3070a0; stroke-width: 1.5; vector-effect: non-scaling-stroke }}
.axis {{ stroke: #444; stroke-width: 1; vector-effect: non-scaling-stroke }}
.scroll {{ overflow-x: auto }} table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
td, th {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top }}
td:first-child, th:first-child {{ text-align: left; padding-left: 0 }} td.left, th.left {{ text-align: left }}
.story {{ position: relative }} .story svg {{ height: 11rem; border-bottom: 1px solid #444 }}
.phase {{ position: absolute; top: .4rem; text-align: center; line-height: 1.2 }}
.phase b {{ display: block; font-size: 1.5rem }} .phase span {{ font-size: .85rem }}
ol.who {{ padding-left: 0; list-style: none }}
ol.who li {{ margin: .5rem 0; padding-left: .8rem; border-left: .4rem solid }}
.when {{ color: #555; font-variant-numeric: tabular-nums; white-space: nowrap }}
ol.life {{ list-style: none; margin: 1rem 0 1rem .4rem; padding: 0; border-left: 2px solid #bbb }}
ol.life li {{ position: relative; padding: 0 0 .8rem 1.2rem }}
ol.life li::before {{ content: ""; position: absolute; left: -.45rem; top: .45rem; width: .75rem; height: .75rem;
  border-radius: 50%; background: var(--dot, #3070a0) }}
ol.life small {{ display: block; color: #555 }}
.bar {{ display: flex; height: 1.1rem; background: #f0e0c0; min-width: 6rem }} .bar i {{ background: #4c9f70 }}
.queue {{ margin: 1.2rem 0 }} .queue svg {{ height: 5.5rem }}
.queue p {{ margin: 0; display: flex; justify-content: space-between; gap: 1rem; font-size: .9rem }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .9rem }}
.legend i {{ display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem }}
.brief {{ white-space: nowrap }}
@media (max-width: 34rem) {{ td, th {{ padding: .3rem .35rem; font-size: .85rem }} .bar {{ min-width: 4rem }}
  .queue p {{ font-size: .8rem }} }}
</style></head><body>
<h1>A week of departures, seen from the log</h1>
<p>Every departure from New York of 5 to 11 February 2013 went through these queues, replayed as fast as it could be
published. Spark derived all that follows from the events in <code>{data}</code>, and from nothing else.</p>
{undo}{life}{limit}{queues}</body></html>
"""


@dataclass(frozen=True, slots=True)
class Change:
    """A message came into a queue (`outcome` published) or left it."""

    time_ms: int
    queue: str
    outcome: str
    user: str
    message_id: int
    restored_id: int | None  # it is a restored message: the id that it had


def changes(spark: "SparkSession", data: Path) -> list[Change]:
    """All of the history, in the order of time."""
    from rewindmq.spark_replay.history.history import history

    rows = history(spark, str(data)).where("outcome = 'published' or final")
    rows = rows.selectExpr(
        "unix_millis(timestamp) as time_ms",
        "queue",
        "outcome",
        "user",
        "message_id",
        "if(origin.reason = 'restored', origin.message_id, null) as restored_id",
        "partition",
        "offset",
        "ordinal",
    )
    found = rows.orderBy("time_ms", "partition", "offset", "ordinal").drop("partition", "offset", "ordinal")
    return [Change(*row) for row in found.toLocalIterator()]


# -- the purge and its undo ------------------------------------------------------------------------------------------


def undo_section(found: list[Change]) -> str:
    """The purged queue: before, purged, restored."""
    own = [change for change in found if change.queue == PURGED_QUEUE]
    purged = [change for change in own if change.outcome == "purged"]
    restored = [change for change in own if change.restored_id is not None]
    if not purged or not restored:
        return ""
    purge_ms, back_ms, done_ms = purged[0].time_ms, restored[0].time_ms, restored[-1].time_ms
    margin = max(500, (done_ms - purge_ms) * 4 // 10)
    start, end = purge_ms - margin, done_ms + margin
    points, depth, most = [(0.0, 0)], 0, 1
    for change in own:
        depth += 1 if change.outcome == "published" else -1
        if change.time_ms > end:
            break
        most = max(most, depth)
        x = max(0.0, charts.WIDTH * (change.time_ms - start) / (end - start))
        points.append((x, depth))
    before = len(purged)
    same = [change.message_id for change in purged] == [change.restored_id for change in restored]
    phases = (
        ("before the purge", before, 0, purge_ms - start, "#3070a0"),
        ("purged", 0, purge_ms - start, back_ms - purge_ms, COLOURS["purged"]),
        ("restored", len(restored), back_ms - start, end - back_ms, "#4c9f70"),
    )
    labels = "".join(
        f'<div class="phase" style="left:{100 * left / (end - start):.2f}%;width:{100 * width / (end - start):.2f}%">'
        f'<b style="color:{colour}">{count:,}</b><span>{name}</span></div>'
        for name, count, left, width, colour in phases
    )
    drawing = charts.svg(
        charts.steps(points, charts.WIDTH, most * 1.8), "messages in the queue: before the purge, purged, restored"
    )
    order = ", each once and in the order in which they were" if same else ""
    return (
        f"<h2>A purge by mistake, and its undo</h2>\n"
        f"<p>Messages in the queue <code>{PURGED_QUEUE}</code>, from {clock(start)} to {clock(end)} UTC.</p>\n"
        f'<div class="story">{drawing}{labels}</div>\n<ol class="who">'
        f'<li style="border-color:#3070a0">Before the purge, {before:,} messages were ready.</li>'
        f'<li style="border-color:{COLOURS["purged"]}"><span class="when">{clock(purge_ms)}</span>'
        f" <b>{html.escape(purged[0].user)}</b> purged the queue: <code>rewindmq purge_queue {PURGED_QUEUE}</code>. It"
        f" was empty for {(back_ms - purge_ms) / 1000:.1f} seconds.</li>"
        f'<li style="border-color:#4c9f70"><span class="when">{clock(back_ms)}</span>'
        f" <b>{html.escape(restored[0].user)}</b> undid it:"
        f" <code>rewindmq restore {PURGED_QUEUE} --undo purge</code>. {len(restored):,} messages came back{order}.</li>"
        f"</ol>\n"
    )


# -- one message's life ----------------------------------------------------------------------------------------------

_WORDS = {
    "published": "came into <b>{queue}</b>",
    "delivered": "was delivered to consumer {consumer}",
    "requeued": "came back ({reason})",
    "acked": "was acknowledged by consumer {consumer}",
    "delivery_limit": "had come back too often, and left the queue",
    "expired": "expired",
    "maxlen": "was dropped by a length limit",
    "rejected": "was rejected by consumer {consumer}",
    "dead_lettered": "went on to the exchange <b>{exchange}</b> as a dead letter",
}
_DOTS = COLOURS | {"requeued": "#d06040", "dead_lettered": "#222222"}


def life_section(message: str, rows: list[Any], body: str) -> str:
    """`rows`: of its biography, in order."""
    began = rows[0].timestamp
    items = []
    for row in rows:
        said = {name: html.escape(str(row[name])) for name in ("queue", "consumer", "reason", "exchange")}
        words = _WORDS.get(row.outcome, html.escape(row.outcome.replace("_", " "))).format(**said)
        notes = [f"after {(row.timestamp - began).total_seconds():.3f} s", f"asked by {row.user or 'the broker'}"]
        if row.delivery_count:
            notes.append(f"delivery count {row.delivery_count}")
        if row.rule:
            notes.append(f"decided by {row.rule}")
        dot = _DOTS.get(row.outcome, "#3070a0")
        items.append(f'<li style="--dot:{dot}">{words}<small>{html.escape("; ".join(notes))}</small></li>')
    return (
        f"<h2>One message's life</h2>\n<p>Message <code>{message}</code>, published {clock(ms_of(began))} UTC:"
        f' <code>{html.escape(body)}</code></p>\n<ol class="life">{"".join(items)}</ol>\n'
    )


# -- another limit ---------------------------------------------------------------------------------------------------


def limit_section(spark: "SparkSession", data: Path, dropped: int) -> str:
    """Which flights a longer carrier queue would have kept. `dropped`: by the limit, as it was."""
    from rewindmq.projections.what_if.alternative import Candidate
    from rewindmq.spark_replay.what_if.what_if import what_if

    candidates = [Candidate(str(limit), r"^carrier\.", {"max-length": limit}) for limit in OTHER_LIMITS]
    fates = what_if(spark, str(data), candidates).fates.where("before = 'maxlen' and after <> 'maxlen'")
    kept: dict[str, list[Any]] = defaultdict(list)
    for row in fates.orderBy("candidate", "message_id").collect():
        kept[row.candidate].append(row)
    rows = [f'<tr><td>{LIMIT}, as it was</td><td>{dropped:,}</td><td>0</td><td class="left"></td></tr>']
    for limit in OTHER_LIMITS:
        saved = len(kept[str(limit)])
        share = f'<div class="bar"><i style="width:{100 * saved / max(1, dropped):.1f}%"></i></div>'
        rows.append(
            f'<tr><td>{limit:,}</td><td>{dropped - saved:,}</td><td>{saved:,}</td><td class="left">{share}</td></tr>'
        )
    first = kept[str(OTHER_LIMITS[0])]
    bodies = bodies_of(data, {(row.partition, row.message_id) for row in first[:FLIGHTS_SHOWN]})
    flights = []
    for row in first[:FLIGHTS_SHOWN]:
        flight = json.loads(bodies[row.partition, row.message_id])
        at = datetime.fromisoformat(flight["scheduled"])
        what = (flight["flight"], f"{flight['from']} to {flight['to']}", f"{at:%d %b, %H:%M}")
        cells = "".join(f'<td class="left brief">{html.escape(cell)}</td>' for cell in what)
        flights.append(f"<tr>{cells}<td>{clock(ms_of(row.before_at))}</td></tr>")
    more = len(first) - len(flights)
    return (
        f"<h2>The flights that another limit would have kept</h2>\n<p>American's desk was closed, so the policy"
        f" <code>carriers</code> (max-length {LIMIT}) dropped messages from the head of <code>carrier.AA</code>. Spark"
        f" folded the same events under other limits.</p>\n"
        f'<div class="scroll"><table><tr><th>max-length</th><th>dropped</th><th>kept instead</th><th></th></tr>'
        f"{''.join(rows)}</table></div>\n<p>With {OTHER_LIMITS[0]}, these would still be in their queue:</p>\n"
        f'<div class="scroll"><table><tr><th>flight</th><th class="left">route</th><th class="left">scheduled</th>'
        f"<th>dropped at</th></tr>{''.join(flights)}</table></div>\n"
        + (f"<p>... and {more:,} more.</p>\n" if more > 0 else "")
    )


def bodies_of(data: Path, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Of messages by partition and offset."""
    from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
    from rewindmq.projections.replay import decoder_for
    from rewindmq.schemas.events import Published

    found = {}
    for log in EmbeddedLogReader(data).queues:
        offsets = sorted(offset for name, offset in wanted if name == log.name)
        for block in log.read_ranges((offset, offset + 1) for offset in offsets):
            for number, record in enumerate(block.records, block.first_offset):
                if (log.name, number) in wanted:
                    event = decoder_for(log).decode(record)[2]
                    assert isinstance(event, Published)
                    found[log.name, number] = event.body.decode()
    return found


# -- every queue -----------------------------------------------------------------------------------------------------


def queues_section(found: list[Change]) -> str:
    start, end = found[0].time_ms, found[-1].time_ms + 1
    buckets = (end - start) // BUCKET_MS + 1
    ended = [outcome for outcome in COLOURS if any(change.outcome == outcome for change in found)]
    legend = "".join(f'<span><i style="background:{COLOURS[outcome]}"></i>{outcome}</span>' for outcome in ended)
    drawn, totals = [], {}
    for queue in sorted({change.queue for change in found}):
        own = [change for change in found if change.queue == queue]
        totals[queue] = Counter(change.outcome for change in own)
        drawn.append(_queue_chart(queue, own, start, buckets))
    columns = ["published", *sorted({outcome for counts in totals.values() for outcome in counts} - {"published"})]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = "".join(
        f"<tr><td>{html.escape(queue)}</td>" + "".join(f"<td>{counts[name]:,}</td>" for name in columns) + "</tr>"
        for queue, counts in totals.items()
    )
    return (
        f"<h2>Every queue</h2>\n<p>Above each axis: messages in the queue. Below it: messages that left it in each"
        f' half second, by outcome. All on the same time, {clock(start)} to {clock(end)} UTC.</p>\n<p class="legend">'
        f"{legend}</p>\n{''.join(drawn)}<h2>What became of every message</h2>\n"
        f'<div class="scroll"><table><tr><th>queue</th>{head}</tr>{rows}</table></div>\n'
    )


def _queue_chart(queue: str, own: list[Change], start: int, buckets: int) -> str:
    left: dict[int, Counter[str]] = defaultdict(Counter)
    step = [0] * buckets
    for change in own:
        bucket = (change.time_ms - start) // BUCKET_MS
        step[bucket] += 1 if change.outcome == "published" else -1
        if change.outcome != "published":
            left[bucket][change.outcome] += 1
    width, depth, points = charts.WIDTH / buckets, 0, []
    for bucket, change_in_depth in enumerate(step):
        depth += change_in_depth
        points.append((bucket * width, depth))
    deepest = max(value for _, value in points)
    fastest = max((sum(counts.values()) for counts in left.values()), default=0)
    shapes = charts.steps(points, charts.WIDTH, deepest, 60)
    for bucket, counts in left.items():
        y = 60.0
        for outcome, count in counts.items():
            tall = 40 * count / fastest
            shapes += charts.rectangle(bucket * width, y, width, tall, COLOURS.get(outcome, OTHER))
            y += tall
    return (
        f'<div class="queue"><p><b>{html.escape(queue)}</b><span>at most {deepest:,} in it, {fastest:,} out at once'
        f"</span></p>{charts.svg(shapes + charts.axis(60), html.escape(queue))}</div>\n"
    )


# -- the page --------------------------------------------------------------------------------------------------------


def clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def ms_of(when: datetime) -> int:
    """Spark hands out times in UTC without saying so."""
    return round(when.replace(tzinfo=UTC).timestamp() * 1000)


def write(spark: "SparkSession", data: Path, target: Path, message: str, life: list[Any]) -> None:
    """`message`: partition:offset of one, and `life` the rows of its biography."""
    found = changes(spark, data)
    partition, _, offset = message.rpartition(":")
    body = bodies_of(data, {(partition, int(offset))})[partition, int(offset)]
    dropped = sum(change.outcome == "maxlen" for change in found)
    target.write_text(
        _TEMPLATE.format(
            data=html.escape(data.name),
            undo=undo_section(found),
            life=life_section(message, life, body),
            limit=limit_section(spark, data, dropped),
            queues=queues_section(found),
        ),
        encoding="utf-8",
    )
