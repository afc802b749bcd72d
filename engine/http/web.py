"""The web page: one static file, which asks the API for everything that it shows."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

PAGE = Path(__file__).parent / "static" / "index.html"


async def page(request: Request) -> Response:
    return FileResponse(PAGE, media_type="text/html", headers={
        "content-security-policy": "default-src 'self' 'unsafe-inline'", "cache-control": "no-cache",
    })  # fmt: skip
