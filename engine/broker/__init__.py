"""What clients may ask of a broker, whatever the protocol. Read broker.py first, then turns.py.

broker.py           publish, get, consume, ack, purge               turns.py            when effects are performed
declarations.py     queues        exchanges.py   exchanges and bindings
administration.py   vhosts, policies, parameters, limits            users.py, passwords.py, access_control.py   users
alarms.py           memory and disk                                 clock_watch.py      steps of the wall clock
"""
