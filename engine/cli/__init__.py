"""The command line. Read rows.py first, then main.py, which lists all commands.

rows.py       commands that are one request, as rows        usage.py        commands and options from a line
main.py       the program, its help and its exit codes      commands/       a file for each group of commands
settings.py   the options that every command has            client.py       asks the management API
kafka.py, kafka_archive.py   a log in Kafka: its options, its archive
lookups.py    finds what a command names                    columns.py, values.py, formatters.py   listings
terminal.py   our own listings at a terminal                child_broker.py   a broker as a child process
times.py      times as people write them                    exits.py        exit codes
outputs.py, shapes.py   the JSON that commands print        progress.py     how far a long question is
shovel.py, standby.py, registry.py, seal_register.py        commands and options with a file to themselves
configuration/          the settings of a broker

At its start the program imports nothing of the broker: main.py imports commands that read a history when they are used.
"""
