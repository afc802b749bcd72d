"""The handlers of the management API, a file for each resource: each takes a Call and returns a Response.

Read queues.py first. engine/http/app.py says which path leads to which handler.

what is declared    queues.py, exchanges.py, bindings.py, vhosts.py, definitions.py
rules               policies.py, parameters.py, limits.py
who                 access.py (users, permissions), clients.py (connections, channels, consumers)
messages            messages.py, restore.py, erasures.py
the past            past.py (a queue at a moment), outcomes.py, search.py, marks.py, evidence.py
the broker          overview.py, health.py, metrics.py, features.py, clock.py
nodes, partitions   quorum.py, repartition.py, state.py
"""
