"""Another history of the same events: under another policy, other arguments, or without some events.

Spark's and the broker's `what-if` share these rules. Read alternative.py first.

alternative.py   the machine under a candidate       later_outcomes.py   messages that end differently there
exclusion.py     left-out events
"""
