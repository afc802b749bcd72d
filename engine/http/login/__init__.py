"""The login of a browser: it gets a cookie, which later requests send back (engine/http/logins.py).

form.py       a user and a password, or a token
sign_in.py    at an identity provider
routes.py     the paths of both
"""
