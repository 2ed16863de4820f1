"""Hours in minutes: every kind of client at once, and the service's memory all along."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from http_clients import Client

# One of so many requests is refused, abandoned or large.
ODD_ONE = 20
BAD_BODIES = (b"{", b'{"text": 1}', b"[" * 5000, b'{"text": "a", "text": "b"}', b'{"id": 1e999}')
SAMPLE_S = 2.0
# Memory settles while caches and pools fill; growth is counted from here on.
SETTLED_SHARE = 0.2


@dataclass
class Soak:
    """Requests by what became of them, and resident bytes of the service over time."""

    answered: int = 0
    refused: int = 0
    abandoned: int = 0
    wrong: int = 0
    resident: list[tuple[float, float]] = field(default_factory=list)

    def to_json(self, seconds: float) -> dict[str, Any]:
        settled = [size for at, size in self.resident if at >= SETTLED_SHARE * seconds]
        tenth = max(1, len(settled) // 10)
        first, last = (sum(part) / len(part) for part in (settled[:tenth], settled[-tenth:]))
        return {
            "seconds": seconds,
            "answered": self.answered,
            "refused": self.refused,
            "abandoned": self.abandoned,
            "wrong": self.wrong,
            "resident_mb": {"settled": first / 1e6, "end": last / 1e6, "peak": max(settled) / 1e6},
            "growth": last / first - 1,
        }


def new_texts(texts: list[str], seed: int) -> Iterator[str]:
    """Texts of many lengths, hardly any of them twice."""
    chance = random.Random(seed)
    while True:
        words = chance.choice(texts).split()
        chance.shuffle(words)
        yield " ".join([str(chance.randrange(10**6)), *words[: chance.randrange(1, len(words) + 1)]])


async def soak(port: int, num_clients: int, texts: list[str], seconds: float) -> Soak:
    """`num_clients` ask, break off, send nonsense; answers must have the ids that were asked with."""
    found = Soak()
    started = time.monotonic()

    async def run(number: int) -> None:
        chance, source, client = random.Random(number), new_texts(texts, number), Client(port)
        turn = 0
        while time.monotonic() - started < seconds:
            turn += 1
            odd = chance.randrange(ODD_ONE)
            if odd == 0:
                answer = await client.ask(post(chance.choice(BAD_BODIES)))
                found.refused += 400 <= answer.status < 500
                found.wrong += answer.status not in (400, 422)
            elif odd == 1:
                await client.send(post(json.dumps({"text": next(source)}).encode()))
                client.close()
                found.abandoned += 1
            else:
                asked = [{"text": next(source), "id": [number, turn, i]} for i in range(8 if odd == 2 else 1)]
                for text in asked:
                    text["id"] = "/".join(map(str, text["id"]))
                answer = await client.classify({"texts": asked})
                ids = [result["id"] for result in json.loads(answer.body).get("results", [])]
                found.answered += 1
                found.wrong += answer.status != 200 or ids != [text["id"] for text in asked]
        client.close()

    async def watch() -> None:
        client = Client(port)
        while (at := time.monotonic() - started) < seconds:
            lines = (await client.get("/metrics")).body.decode().splitlines()
            line = next(line for line in lines if line.startswith("process_resident_memory_bytes "))
            found.resident.append((at, float(line.split()[1])))
            await asyncio.sleep(SAMPLE_S)
        client.close()

    await asyncio.gather(watch(), *(run(number) for number in range(num_clients)))
    return found


def post(body: bytes) -> bytes:
    head = "POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
