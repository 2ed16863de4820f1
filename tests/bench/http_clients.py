"""Clients for load: each keeps one connection and asks again as soon as it has its answer."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

CLASSIFY = "/v1/classify"


@dataclass
class Answer:
    """Status and body of one answer, and how long it took."""

    status: int
    body: bytes
    seconds: float


class Client:
    """One connection to a service on this machine, opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> Answer:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def classify(self, body: Any) -> Answer:
        data = json.dumps(body).encode()
        head = f"POST {CLASSIFY} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return await self.ask(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    async def ask(self, request: bytes) -> Answer:
        """Send bytes, read one answer."""
        started = time.perf_counter()
        await self.send(request)
        assert self._streams is not None
        reader, _ = self._streams
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return Answer(int(head[9:12]), body, time.perf_counter() - started)

    async def send(self, request: bytes) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        _, writer = self._streams
        writer.write(request)
        await writer.drain()

    def close(self) -> None:
        """End the connection, whatever is under way."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Load:
    """What some clients saw. `wrong` answers are those of another text, or not those that were expected."""

    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    wrong: int = 0
    refused: int = 0

    def to_json(self) -> dict[str, float]:
        ordered = sorted(self.seconds)
        shares = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
        found = {
            name: 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in shares.items()
        }
        rate = len(ordered) / self.wall_s
        return {"requests": len(ordered), "items_per_s": rate, **found, "wrong": self.wrong, "refused": self.refused}


async def load(
    port: int, num_clients: int, texts: Iterator[str], check: Callable[[str, dict[str, Any]], bool], seconds: float
) -> Load:
    """`num_clients` ask one text at a time for `seconds`; every answer is checked, its id included."""
    found = Load()
    started = time.perf_counter()

    async def run(number: int) -> None:
        client = Client(port)
        asked = 0
        while time.perf_counter() - started < seconds:
            text, name = next(texts), f"{number}/{asked}"
            answer = await client.classify({"text": text, "id": name})
            asked += 1
            if answer.status != 200:
                found.refused += 1
                continue
            found.seconds.append(answer.seconds)
            (result,) = json.loads(answer.body)["results"]
            found.wrong += not (result["id"] == name and check(text, result))
        client.close()

    await asyncio.gather(*(run(number) for number in range(num_clients)))
    found.wall_s = time.perf_counter() - started
    return found
