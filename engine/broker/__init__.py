"""The broker's answers to clients, for AMQP and HTTP alike. Read broker.py first, then turns.py.

broker.py           the parts, put together             turns.py                 when effects are performed
queues.py           queues, with declarations.py        exchanges.py             exchanges, bindings, routes
consumers.py        basic.consume, get and cancel       open_sessions.py         clients' sessions
users.py            users and their permissions         access_control.py, passwords.py   what a user may do; hashes
policies.py         policies, applied to queues         vhosts.py, parameters.py, limits.py, marks.py
alarms.py           memory and disk                     clock_watch.py           steps of the wall clock
direct_reply.py     queues of direct replies            removals.py              single messages deleted or moved
followers.py        machines that copy the log          history_trims.py         trims beside a broker that runs
history_size.py     growth on the disk                  archive_status.py        the archive, for `status`
access_log.py       who came, and what was refused      login_brake.py           slows guesses of passwords
callers.py          sessions of HTTP and CLI calls
"""
