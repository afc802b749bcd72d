"""The desk: static files, which get all their data from the API.

Scripts and styles come from these files only, so no text of a message or a name can become a script.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
FILES = {"/": "index.html"} | {
    f"/{path.relative_to(STATIC).as_posix()}": path.relative_to(STATIC).as_posix()
    for path in sorted(STATIC.rglob("*"))
    if path.suffix in MEDIA_TYPES
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(path: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the file of the desk that is at `path`."""
    file = STATIC / FILES[path]

    async def show(request: Request) -> Response:
        return FileResponse(
            file,
            media_type=MEDIA_TYPES[file.suffix],
            headers={"content-security-policy": POLICY, "cache-control": "no-cache"},
        )

    return show
