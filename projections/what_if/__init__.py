"""Another history of the same events: under another policy, other arguments, or without some events.

Spark's `what-if` and the broker's have these rules from here. Read alternative.py first.

alternative.py   the machine under a candidate       later_outcomes.py   messages that end differently there
exclusion.py     events that are left out
"""
