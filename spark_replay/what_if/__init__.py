"""`what-if`: the history folded under other policies, or without some events. Read alternative.py first.

what_if.py      the function and its tables       alternative.py   the machine under a candidate
candidates.py   candidates, read and checked      exclusion.py     events that are left out, and all that came of them
"""
