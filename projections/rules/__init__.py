"""Checks of what users give: policies, arguments, patterns. They need no state.

policy_rules.py     definitions of policies      queue_arguments.py   arguments of queues
patterns.py         regular expressions          internal_queues.py   names of the broker's own queues
erlang_terms.py     values in errors, as RabbitMQ prints them
partition_hash.py   the hash that places a queue; projections/topology/placement.py says which partition a queue is in
"""
