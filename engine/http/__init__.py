"""RabbitMQ's management API, metrics and the web page. Read app.py first: it has all paths.

app.py             paths, and the handler of each            call.py            one request as a handler sees it
resources/         a file for each resource                  listing.py, filters.py   columns, sorting, pages, names
authentication.py  log-in                                    browsers.py        refuses requests that other sites cause
bodies.py          large requests                            pieces.py          large answers
server.py          sockets and time limits                   statistics.py      counts and rates
metrics/           the same figures for Prometheus           live.py             answers sent again as they change
refusals.py        what a client hears that is refused      login/             how a browser logs in
folds.py           what a node on Kafka folds before an answer
"""
