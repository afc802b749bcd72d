"""`what-if`: the history folded under other policies, or without some events. The rules are in projections/what_if.

what_if.py      the function and its tables       depths.py      lengths of queues over time
candidates.py   candidates, read and checked      exclusion.py   what a history says about events to leave out
"""
