"""The commands, a file for each group; each has COMMANDS. Read listings.py first: it is short and typical.

They ask a running broker through the management API. engine/cli/main.py imports the files that read a log or an archive
without a broker only when one of their commands is used.

rabbitmqctl's      listings.py, queues.py, quorum.py, access.py (users), vhosts.py, parameters.py, connections.py,
                   definitions.py, node.py, operations.py, diagnostics.py
our own            own.py (marks and the like), answers.py, restore.py
without a broker   events.py, history.py, versions.py, seals.py, archive.py, recover.py, trim.py, erasures.py
a new node         copy_state.py
a broker to try    trial.py
"""
