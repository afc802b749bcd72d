"""The past of queues: shown, read by AMQP clients, brought back. Read queue_at.py first.

queue_at.py      a queue at a moment                       worker.py        folds in a process beside the broker
restore.py       brings messages back                      bindings_at.py   the bindings that a queue had
reader.py        a consumer that removes nothing; stream_consumers.py and history_consumers.py are its two kinds
arguments.py     x-stream-offset, x-rewind-to and their like
"""
