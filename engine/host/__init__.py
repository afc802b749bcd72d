"""The process and its machine: connections admitted, memory, the loop's time, disk limits. Read loop_share.py first.

loop_share.py   long work, a slice in each turn of the loop    loop_watch.py       reports work that took longer
slices.py       changes of many queues, cut into slices        eager.py            coroutines that rarely wait
admission.py    which connections are let in                   proxy_protocol.py   for whom a balancer speaks
memory.py       bytes held for clients                         heap.py             freed memory that glibc keeps
watermarks.py   limits of memory and disk                      durations.py        `90s`, `1h30m`
ports.py        who has a port that is taken
"""
