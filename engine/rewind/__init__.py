"""The past of a queue: read by consumers, shown by the management API, and brought back.

stream_consumers.py    consumers of streams, and the turns that all readers take
history_consumers.py   consumers of a queue's past              message_sources.py   what they read
reader.py              the part that both kinds of consumers share
arguments.py           x-stream-offset, x-rewind-to, x-stream-filter
queue_at.py            a queue as it was at a moment            bindings_at.py   its bindings then
restore_plan.py        messages to bring back                  restorations.py  the broker brings them back
search.py              messages found by what is in them       lost_messages.py    unrouted ones, routed again
outcomes.py            a message's life, last outcomes          worker.py        processes that fold history
partition_visits.py    the partitions in which a queue was      fates.py         what became of messages since
depth.py               a queue's length over time               policy_effects.py   what a policy would do at once
what_if.py             another policy, tried on a queue         trace_outcomes.py   outcomes of messages with a trace
id_index.py, id_index_process.py, id_index_passes.py            the index of message ids
seals.py               how far a question's history is sealed   liveness.py      processes that hang
masks.py               contents that a user does not see
"""
