"""The rules that handlers share. Read settings.py first: it says which rules hold for a queue.

settings.py   arguments, policy and operator policy, merged      profile.py         the RabbitMQ that a queue is like
limits.py     length limits       expiry.py   TTLs and delays    dead_letters.py    the outbox
single_active.py   which consumer is the active one
"""
