"""A comparison of two versions of RewindMQ over one history, which names the first event that they treat differently.

compare.py    starts both and compares           worker.py    the fold of one version, in its own process
"""
