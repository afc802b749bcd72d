"""The command line. Read main.py first: it lists all commands.

main.py       the program, its help and its exit codes      commands/       a file for each group of commands
settings.py   the options that every command has            client.py       asks the management API
kafka.py, kafka_archive.py   a log in Kafka: its options, its archive
lookups.py    finds what a command names                    columns.py, values.py, formatters.py   listings
"""
