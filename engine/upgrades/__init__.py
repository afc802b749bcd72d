"""The machine version that a history follows: finalize.py lets it follow the program's.

since_version.py refuses features that need a later one.
"""
