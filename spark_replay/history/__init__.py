"""The outcomes of a history, and states of its queues. Read outcomes.py first.

outcomes.py   effects as rows of HISTORY      events.py        events as rows of EVENTS
properties.py properties of messages, as JSON
history.py    `history`, `biography`          incremental.py   `keep-history`
state.py      `state-at`                      diff.py          `diff`                      slo.py          `slo`
"""
