"""A real S3 server for tests."""
