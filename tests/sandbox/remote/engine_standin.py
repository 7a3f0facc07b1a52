"""A stand-in for a Docker engine, for responses that a real one gives rarely."""

import asyncio
from pathlib import Path


class EngineStandin:
    """A Docker engine that gives prepared responses: with several, one to each request, and the last to all others."""

    def __init__(self, path: Path, *responses: bytes | None) -> None:
        self.path, self._responses = path, list(responses)
        self.requests: list[bytes] = []

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            self.requests.append((await reader.readline()).rstrip())
            response = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
            if response is None:
                await asyncio.sleep(30)
            writer.write(response or b"")
            await writer.drain()
        finally:
            writer.close()


def make_response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
