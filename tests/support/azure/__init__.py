"""A real server of Azure Blob Storage for tests."""
