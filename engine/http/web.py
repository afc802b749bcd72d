"""The web page: three static files, which get all their data from the API.

Scripts and styles come from these files only, so no text of a message or a name can become a script.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)


def page(path: str) -> Callable[[Request], Awaitable[Response]]:
    """The file of the page that is at `path`."""
    name, media_type = FILES[path]

    async def show(request: Request) -> Response:
        return FileResponse(
            STATIC / name,
            media_type=media_type,
            headers={
                "content-security-policy": POLICY,
                "cache-control": "no-cache",
            },
        )

    return show
