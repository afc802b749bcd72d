"""Jobs reported to OpenLineage. Read lineage.py first.

lineage.py    a run: what it reads, finds and writes      events.py   the events of OpenLineage      settings.py
"""
