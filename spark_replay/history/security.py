"""`security`: who came, who was refused what, who read the past, and who gave a reason for what it did, as rows with
OCSF's names (ocsf.io, version 1).

    events = spark.read.format("rewindmq").option("path", DIR).option("log", "all").load()
    security(events).where("status = 'Failure'").groupBy("src_ip", "user_name").agg({"count": "sum"}).show()

Authentication (3002): logins and logouts. API Activity (6003): what was refused, and what was read of the past.
Entity Management (3004): other acts for which somebody gave a reason (`comment`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ACTIVITIES = {
    "SessionOpened": ("Authentication", "Logon", "Success"),
    "SessionClosed": ("Authentication", "Logoff", "Success"),
    "LoginRefused": ("Authentication", "Logon", "Failure"),
    "AccessRefused": ("API Activity", "Other", "Failure"),
    "PastRead": ("API Activity", "Read", "Success"),
}
# The same of every other event with a reason, as SQL
ACTS = (
    "'Entity Management'",
    "case when event rlike 'Deleted|Cleared|Purged|Unbound|Removed|Erased|Trimmed' then 'Delete'"
    " when event rlike 'Declared|Created|Bound' then 'Create' else 'Update' end",
    "'Success'",
)
FOLLOW = ("Published", "PolicyApplied")  # of an act that has a row: restored messages, and queues under a policy
# column -> the first field of `detail` that is there
DETAILS = {
    "auth_protocol": ("mechanism",),
    "certificate_subject": ("certificate",),
    "tls": ("tls",),
    "app_protocol": ("protocol",),
    "dst_endpoint": ("listener",),
    "proxy_endpoint": ("proxy",),
    "api_operation": ("operation", "way"),
    "resource_type": ("kind",),
    "status_detail": ("reason", "request"),
    "client_properties": ("client_properties",),
}


def security(events: "DataFrame") -> "DataFrame":
    """Return the rows of these events (the view `events`, with the metadata log), in no order.

    `count` is how many there were since `start_time`: refusals are grouped. `session_uid` joins the rows of a session,
    also with `history`. A `src_ip` is that of the client, also behind a balancer; empty means many."""
    from pyspark.sql.functions import coalesce, col, expr, get_json_object, lit, regexp_extract, timestamp_millis, when

    def field(*names: str) -> "Column":
        return coalesce(*(get_json_object("detail", f"$.{name}") for name in names))

    explained = col("why").isNotNull() & ~col("event").isin(*FOLLOW)
    known = events.where(col("event").isin(*ACTIVITIES) | explained).where(
        "event != 'SessionClosed' or partition like '%metadata%'"  # those of queues say it once more
    )
    address = get_json_object("detail", "$.address")
    said = [dict(zip(ACTIVITIES, column, strict=True)) for column in zip(*ACTIVITIES.values(), strict=True)]
    texts = [
        expr(
            "case event "
            + " ".join(f"when '{event}' then '{text}'" for event, text in texts.items())
            + f" else {act} end"
        )
        for texts, act in zip(said, ACTS, strict=True)
    ]
    refused = col("event") == "LoginRefused"
    return known.select(
        col("timestamp").alias("time"),
        texts[0].alias("class_name"),
        texts[1].alias("activity_name"),
        texts[2].alias("status"),
        when(refused, field("user")).otherwise(col("user")).alias("user_name"),
        when(refused, lit(None)).otherwise(col("session")).alias("session_uid"),
        coalesce(field("host"), regexp_extract(address, r"^\[?(.*?)\]?:\d*$", 1)).alias("src_ip"),
        regexp_extract(address, r":(\d+)$", 1).cast("int").alias("src_port"),
        col("vhost"),
        coalesce(col("queue"), field("name", "user", "exchange", "subject", "partition")).alias("resource_name"),
        *(field(*names).alias(column) for column, names in DETAILS.items()),
        col("why").alias("comment"),
        coalesce(field("count").cast("long"), lit(1)).alias("count"),
        coalesce(timestamp_millis(field("first_ms").cast("long")), col("timestamp")).alias("start_time"),
        col("partition"),
        col("offset"),
    )
