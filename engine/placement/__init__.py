"""How queues move when the log gets more partitions. In which partition a name leads: routing/homes.py, read it first.

repartition.py   the course of a repartition: names are held, queues are listed, placed anew
moves.py         they move, one after the other
agreement.py     waits until a step is durable, and known to all nodes
strays.py        what is left of a queue in the partition that it leaves follows it
request.py       what an operator asks for, and sees
consumers.py     consumers follow their queue
obstacles.py     what stands against a repartition
"""
