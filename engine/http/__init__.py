"""RabbitMQ's management API, metrics and the web page. Read app.py first: it has all paths.

app.py             paths, and the handler of each      call.py          one request as a handler sees it
resources/         a file for each resource            listing.py, filters.py   columns, sorting, pages, names
shapes/            types of the JSON                   reference/       the OpenAPI document
server.py          sockets and time limits             pace.py          a connection's share of the loop
authentication.py  log-in                              browsers.py      refuses requests that other sites cause
login/             how a browser logs in               logins.py        cookies of browsers
bodies.py          large requests                      pieces.py        large answers
live.py            answers sent again as they change   disconnects.py   requests that end before their answer
statistics.py      counts and rates                    metrics/         the same figures for Prometheus
refusals.py        what a refused client hears         properties.py    a message's properties as JSON
folds.py           what a node on Kafka folds first    places.py        where partitions are folded
followers.py       a leader's answers to followers     listeners.py     AMQP listeners, closed and opened
web.py             the desk's files
"""
