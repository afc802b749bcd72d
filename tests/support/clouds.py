"""The servers of Google Cloud Storage and Azure Blob Storage, for the tests of a module: `cloud` is each of both."""

from collections.abc import Iterator

import pytest

from tests.support.azure.server import AzureServer, require_azure
from tests.support.gcs.server import GcsServer, require_gcs
from tests.support.store_server import StoreServer

SERVERS: dict[str, type[StoreServer]] = {"gs": GcsServer, "az": AzureServer}
NEEDS = {"gs": require_gcs, "az": require_azure}


@pytest.fixture(scope="module", params=SERVERS)
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A real server."""
    NEEDS[request.param]()
    with SERVERS[request.param](tmp_path_factory.mktemp("cloud")) as server:
        yield server
