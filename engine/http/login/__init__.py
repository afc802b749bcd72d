"""How a browser logs in: it gets a cookie, which later requests bring (engine/http/logins.py).

form.py       a user and a password, or a token
sign_in.py    at an identity provider
routes.py     the paths of both
"""
