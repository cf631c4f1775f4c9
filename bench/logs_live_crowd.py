"""Many viewers of one stream in one process, or one that hardly reads. Run in the lab's network.

    python -m bench.logs_live_crowd COUNT URL CA PAUSE_S < TOKEN

Says `ready` when every viewer has seen a line; then, at each line of its input, how many bytes and
lines all of them have had so far.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

_PIECE = 16 * 1024
_TRIES = 60


@dataclass
class Had:
    """What came."""

    bytes: int = 0
    events: int = 0
    seated: int = 0
    lost: int = 0


async def view(url: str, token: str, context: ssl.SSLContext, had: Had, pause_s: float) -> None:
    """Until the stream ends; asked again while the server does not know the job yet."""
    for _ in range(_TRIES):
        if await _view(url, token, context, had, pause_s):
            had.lost += 1
            return
        await asyncio.sleep(0.5)
    raise AssertionError("the server refuses")


async def _view(url: str, token: str, context: ssl.SSLContext, had: Had, pause_s: float) -> bool:
    target = urlsplit(url)
    assert target.hostname
    raw = socket.create_connection((target.hostname, target.port or 443))
    if pause_s:
        # Else the kernel would read megabytes ahead for it.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    reader, writer = await asyncio.open_connection(
        sock=raw,
        ssl=context if target.scheme == "https" else None,
        server_hostname=target.hostname if target.scheme == "https" else None,
        limit=64 * 1024,
    )
    writer.write(
        f"GET {target.path}?{target.query} HTTP/1.1\r\nhost: {target.netloc}\r\n"
        f"authorization: Bearer {token}\r\naccept: text/event-stream\r\n\r\n".encode()
    )
    if b" 200 " not in await reader.readline():
        writer.close()
        return False
    seen = False
    while text := await reader.read(_PIECE):
        had.bytes += len(text)
        had.events += text.count(b"event: lines")
        if not seen and b"event: lines" in text:
            seen = True
            had.seated += 1
        if pause_s:
            await asyncio.sleep(pause_s)
    return True


async def main(count: int, url: str, ca: str, pause_s: float) -> None:
    loop = asyncio.get_running_loop()
    token = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
    context = ssl.create_default_context(cafile=ca)
    had = Had()
    viewers = []
    for _ in range(count):
        viewers.append(asyncio.create_task(view(url, token, context, had, pause_s)))
        await asyncio.sleep(0.01)
    while had.seated < count:
        await asyncio.sleep(0.1)
        for each in viewers:
            if each.done():
                each.result()
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(vars(had)), flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    asyncio.run(main(int(words[0]), words[1], words[2], float(words[3])))
