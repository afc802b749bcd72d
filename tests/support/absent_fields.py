"""Fields of RabbitMQ's management API that RewindMQ does not have, and why."""

import re

ABSENT = {
    "Erlang's processes, memory and databases": (
        "garbage_collection",
        "reductions(_details)?",
        "erlang_(full_)?version",
        "proc_(total|used|used_details)",
        "gc_.*",
        "run_queue",
        "net_ticktime",
        "ra_open_file_metrics",
        "io_.*",
        "mnesia_.*",
        "msg_store_.*",
        "queue_index_.*",
        "metrics_gc_queue_length",
        "cowboy_opts",
        "pending_raft_commands",
        "backing_queue_status",
        "open_files",
    ),
    "what a queue has in memory and on disk is the store's matter, and not counted by queue": (
        "disk_(reads|writes)(_details)?",
        "memory",
        "messages(_ready|_unacknowledged)?_ram",
        "message_bytes_ram",
        "message(s|_bytes)_(paged_out|persistent)",
    ),
    "not counted": (
        "idle_since",
        "consumer_(capacity|utilisation)",
        "exchanges.*message_stats",
        "exchanges.*user_who_performed_action",
        "vhosts.*message_stats.(publish|confirm|.*unroutable)(_details)?",
        "vhosts.*(recv|send)_oct(_details)?",
    ),
    "mirrors": ("recoverable_slaves",),
    "lists that are empty here": (
        r"sample_retention_policies\.\w+\[\]",
        r"config_files\[\]",
        r"extensions \[\].*",
    ),
    "3.13 has single_active_consumer_tag": ("single_active_consumer_ctag",),
    "3.13 has oauth_enabled": ("enable_uaa", "uaa_.*"),
    "RabbitMQ's support contract": ("release_series_support_status",),
}


PATTERN = re.compile("|".join(rf"(?:^|[ .])(?:{each})(?:$|[.\[])" for some in ABSENT.values() for each in some))
