"""The fold of the metadata log. Read topology.py first.

topology.py   vhosts, users, permissions, exchanges, bindings, parameters, nodes
policies.py   the policies that are set, and the one that applies to a queue or an exchange
"""
