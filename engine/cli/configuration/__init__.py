"""The settings of a broker: one table, and what is made of it: options, environment, file, docs. Read table.py first.

table.py      every setting, one row each         kinds.py      how a value is written
sources.py    flag, environment, file, default    assembly.py   a `Config` of all values, or a refusal
options.py    options of commands                 manual.py     completion and man pages
live.py       what SIGHUP takes over              commands.py   start, config
"""
