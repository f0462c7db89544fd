"""The one port that silos reach: forwards Flower's fleet path to a SuperLink on loopback, and refuses the rest.

On the SuperLink's own port anyone may start a run, which is code that every silo executes: its authentication covers
the fleet path only. So the SuperLink listens on loopback, and this gate is what the network sees.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docleak.errors import MissingExtraError

#: What may pass: what SuperNodes use, and the question whether the server is up.
OPEN = ("/v1/fleet/",)
HEALTH = "/health"
#: Headers that belong to one connection, or that the forwarding library sets.
HOP = {"host", "connection", "transfer-encoding", "keep-alive", "content-length", "content-encoding", "accept-encoding"}
TIMEOUT = 600.0


def may_pass(path: str) -> bool:
    """Whether a request for ``path`` is forwarded; a path that is not in its plain form is not."""
    plain = not any(part in (".", "..", "") for part in path.split("/")[1:-1]) and "%" not in path and "\\" not in path
    return plain and (path == HEALTH or path.startswith(OPEN))


def gate_app(superlink: str, authority: Path) -> Any:
    """The gate as an ASGI application; ``superlink`` is its https address on loopback."""
    try:
        import httpx
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError(
            f"the gate needs httpx and starlette ({error}). Install them with: pip install 'docleak[federated]'"
        ) from error
    client = httpx.AsyncClient(
        base_url=superlink, verify=ssl.create_default_context(cafile=str(authority)), timeout=TIMEOUT
    )

    def passed(headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.lower() not in HOP}

    async def forward(request: Request) -> Response:
        raw = request.scope.get("raw_path", request.url.path.encode()).decode("ascii", "replace").partition("?")[0]
        if not may_pass(raw):
            return PlainTextResponse("this path is not open to silos", 403)
        try:
            answer = await client.request(
                request.method, raw, content=await request.body(), headers=passed(request.headers)
            )
        except httpx.TimeoutException:
            return PlainTextResponse("the SuperLink does not answer in time", 504)
        except httpx.TransportError:  # it is down, or went down: nodes try again after 503
            return PlainTextResponse("the SuperLink is not there", 503)
        return Response(answer.content, answer.status_code, passed(answer.headers))

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])])


def serve(superlink: str, folder: Path, *, host: str, port: int) -> None:
    """Run the gate with the certificate in ``folder`` until it is stopped."""
    import uvicorn

    uvicorn.run(
        gate_app(superlink, folder / "ca.crt"), host=host, port=port, ssl_keyfile=str(folder / "server.key"),
        ssl_certfile=str(folder / "server.pem"), log_level="warning",
    )  # fmt: skip
