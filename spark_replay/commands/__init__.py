"""The commands of `rewindmq spark`. Read read.py first.

read.py, check.py, simulate.py, traces.py      the commands, by purpose
options.py, location_options.py     options that they share       output.py, report.py, report_html.py, progress.py
outputs.py, object_output.py         JSON, and tables in object storage
exit_status.py, failures.py         errors, as a status and one line
"""
