"""The demo's page: depth of each queue over time, and by which outcome its messages left, from Spark's `history`.

Above each axis is how many messages the queue held; below it, how many left it in that half second, coloured by
outcome. One HTML file with the plots inside, so that it can be sent to somebody.
"""

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import pandas as pd
from matplotlib import pyplot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET_MS = 500
COLOURS = {
    "acked": "#4c9f70", "expired": "#b8b8b8", "maxlen": "#e0a030", "delivery_limit": "#b03060",
    "rejected": "#d06040", "purged": "#7040a0",
}  # fmt: skip

_TEMPLATE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>RewindMQ demo</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem .8rem; text-align: right;
  border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }} svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>A week of departures, seen from the log</h1>
<p>Every departure from New York of 5 to 11 February 2013 went through these queues, replayed as fast as it could be
published. Above each axis: messages in the queue. Below: messages that left it per half second, by outcome. Spark
derived all of it from the events in <code>{data}</code>.</p>{plot}
<h2>What became of every message</h2>{table}</body></html>
"""


def outcomes(spark: "SparkSession", data: Path) -> pd.DataFrame:
    """Counts by queue, bucket (ms since the epoch), outcome: `published`, and each outcome that ended a message."""
    from rewindmq.spark_replay.history.history import history

    rows = history(spark, str(data)).where("outcome = 'published' or final")
    rows = rows.selectExpr("queue", f"floor(unix_millis(timestamp) / {BUCKET_MS}) * {BUCKET_MS} as bucket", "outcome")
    return rows.groupBy("queue", "bucket", "outcome").count().toPandas()


def draw(counts: pd.DataFrame) -> str:
    """An SVG, a row of plots a queue, all on the same time axis."""
    matplotlib.use("svg")
    queues = sorted(counts.queue.unique())
    start, end = counts.bucket.min(), counts.bucket.max() + BUCKET_MS
    buckets = range(start, end, BUCKET_MS)
    figure, axes = pyplot.subplots(len(queues), 1, figsize=(10, 1.5 * len(queues)), sharex=True, squeeze=False)
    for axis, queue in zip(axes[:, 0], queues, strict=True):
        own = counts[counts.queue == queue]
        table = own.pivot_table(index="bucket", columns="outcome", values="count", aggfunc="sum")
        table = table.reindex(buckets, fill_value=0).fillna(0)
        seconds = (table.index - start) / 1000
        left = table.drop(columns="published", errors="ignore")
        depth = (table.get("published", 0) - left.sum(axis=1)).cumsum()
        axis.fill_between(seconds, depth, step="post", color="#9cc4e4")
        axis.step(seconds, depth, where="post", color="#3070a0", linewidth=1)
        bottom = 0
        for outcome in left.columns:
            colour = COLOURS.get(outcome, "#606060")
            axis.bar(seconds, -left[outcome], BUCKET_MS / 1000, bottom=bottom, align="edge", color=colour)
            bottom = bottom - left[outcome]
        axis.axhline(0, color="#444", linewidth=0.6)
        axis.set_ylabel(queue, rotation=0, ha="right", va="center", fontsize=9)
        axis.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("seconds since the start")
    ended = [outcome for outcome in COLOURS if outcome in set(counts.outcome)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[outcome]) for outcome in ended]
    figure.legend(handles, ended, loc="upper right", ncols=len(ended), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    out = io.StringIO()
    figure.savefig(out, format="svg")
    pyplot.close(figure)
    return out.getvalue().partition("?>")[2].partition(">")[2]  # without the XML prologue and doctype


def write(spark: "SparkSession", data: Path, target: Path) -> None:
    counts = outcomes(spark, data)
    totals = counts.pivot_table(index="queue", columns="outcome", values="count", aggfunc="sum").fillna(0).astype(int)
    table = totals[["published", *(column for column in totals.columns if column != "published")]]
    page = _TEMPLATE.format(
        data=html.escape(data.name), plot=draw(counts), table=table.to_html(index_names=False, border=0)
    )
    target.write_text(page, encoding="utf-8")
