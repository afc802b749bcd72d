"""The outcomes of a history, and states of its queues. The rules are in projections/history.

outcomes.py   rows of HISTORY                 events.py        events as rows of EVENTS
history.py    `history`, `biography`          incremental.py   `keep-history`
state.py      `state-at`                      diff.py          `diff`
slo.py, waits.py   `slo`                      spans.py         `spans`
outcome_rows.py    outcomes as Arrow          security.py      `security`
"""
