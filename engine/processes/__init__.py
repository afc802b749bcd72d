"""One broker in several processes of a machine: one writes the log, the others are its workers.

supervisor.py   the first process: writes the log, starts the workers, starts them again, stops them
log_care.py     what it does for the log besides: ends old segments, keeps the archiver, logs trims
prepare.py      before that: the end of what an earlier run left, in a process of its own
worker.py       what a worker's configuration has of its own
"""
