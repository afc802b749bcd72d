"""The outcomes of a history, and states of its queues. The rules are in projections/history.

outcomes.py   rows of HISTORY as Arrow        events.py        events as rows of EVENTS
history.py    `history`, `biography`          incremental.py   `keep-history`
state.py      `state-at`                      diff.py          `diff`                      slo.py          `slo`
"""
