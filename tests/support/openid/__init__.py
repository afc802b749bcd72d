"""A real OpenID provider for tests of signing in."""
