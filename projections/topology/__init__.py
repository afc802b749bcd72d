"""The fold of the metadata log. Read topology.py first.

topology.py               vhosts, users, permissions, exchanges, bindings, parameters, nodes
bindings.py               bindings, indexed by both ends
policies.py               the policies that are set, and the one that applies to a queue or an exchange
outstanding_policies.py   the event that tells a queue of the policies that match it
placement.py              the partition that a queue is in, and its moves: `home`
about_history.py          trims, branches and erasures
metadata_fold.py          the fold, record by record       fold_image.py   its stored form
json_texts.py             JSON in events, checked
"""
