"""A real server of Google Cloud Storage for tests."""
