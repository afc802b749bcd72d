"""The commands, a file for each group; each has COMMANDS. Read listings.py first: it is short and typical.

They ask a running broker through the management API. main.py imports the files that read the log without a broker, such
as events.py, history.py and seals.py, when one of their commands is used.
"""
