"""The rules that handlers share. Read keys.py and settings.py first: they say which rules hold for a queue.

keys.py       every key of policies and arguments, in a table    legal_values.py    values that a key may have
settings.py   arguments, policy and operator policy, merged      profile.py         the RabbitMQ that a queue is like
limits.py     length limits       expiry.py   TTLs and delays    dead_letters.py    the outbox
single_active.py   which consumer is the active one      deduplication.py   duplicates that are dropped
versions.py   machine versions, and the schema of each
"""
