"""The moves of queues when the log gets more partitions. Read moves.py first.

routing/homes.py finds the partition of a name, and holds names whose queues move.

moves.py             how a queue moves, step by step
repartition.py       the course of a repartition: names are held, queues are listed, placed anew, and moved
step_barrier.py      waits until a step is durable, and known to all nodes
leftover_queues.py   messages that remain in the partition that a queue left follow the queue
request.py           an operator's request, and its progress
consumers.py         consumers follow their queue
obstacles.py         the reasons to refuse a repartition
"""
