"""The data source `format("rewindmq")`. Read source.py first: its head lists the options.

source.py   the door       options.py   options, checked      log.py      the views of the log
folds.py    the views of folds                                stream_reader.py   `readStream`
"""
