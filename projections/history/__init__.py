"""Answers about a history: the outcomes of its events as rows, a search for messages, the life of one message, and the
difference of two moments.

Spark's jobs and the broker's process that reads the past share these rules. They add only the reading of the log and
the presentation of the rows.

product.py    a fold that makes rows        outcomes.py, outcome_rows.py   effects as rows of HISTORY
biography.py  the life of a message         diff.py                        changes between two moments
search.py     the wanted messages           properties.py                  properties of messages, as JSON
"""
