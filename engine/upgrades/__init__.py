"""The machine version that a history follows: finalize.py lets it follow the program's.

since_version.py refuses what needs a later one.
"""
