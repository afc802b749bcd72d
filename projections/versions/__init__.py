"""Two versions of RewindMQ fold one history, and the first event that they take differently is named.

compare.py    starts both and compares           worker.py    the fold of one version, in a process of its own
"""
