"""A plain passthrough on aiohttp: it reads a request whole, sends it on, and passes the reply back as it comes.

    $ python bench/peers/passthrough.py PORT UPSTREAM

It does nothing else: no sessions, no record. It is the least that a proxy written with aiohttp costs.
"""

import sys

from aiohttp import ClientSession, TCPConnector, web


def build_app(upstream: str) -> web.Application:
    async def pass_on(request: web.Request) -> web.StreamResponse:
        client: ClientSession = request.app[CLIENT]
        url = upstream + request.path.removeprefix("/v1")
        async with client.post(url, data=await request.read(), headers={"Content-Type": "application/json"}) as reply:
            if not reply.content_type.startswith("text/event-stream"):
                return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)
            response = web.StreamResponse(status=reply.status, headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for data in reply.content.iter_any():
                await response.write(data)
            return response

    async def say_healthy(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def run_client(app: web.Application):
        async with ClientSession(connector=TCPConnector(limit=256)) as client:
            app[CLIENT] = client
            yield

    app = web.Application(client_max_size=32 * 1024 * 1024)
    app.router.add_get("/health", say_healthy)
    app.router.add_post("/v1/{rest:.*}", pass_on)
    app.cleanup_ctx.append(run_client)
    return app


CLIENT = web.AppKey("client", ClientSession)


if __name__ == "__main__":
    web.run_app(build_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
