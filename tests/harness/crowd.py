"""Hundreds of clients at once on one event loop: each asks again and again, and every byte is compared."""

import asyncio
from collections.abc import Callable

from .addresses import Address

Question = tuple[str, bytes]


async def _ask(address: Address, target: str) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(f"GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()


def crowd(
    address: Address,
    clients: int,
    rounds: int,
    question: Callable[[int, int], Question],
    meanwhile: Callable[[int], None] = lambda answered: None,
    deadline: float = 60.0,
) -> list[str]:
    """What went wrong; `question(client, turn)` is a target and the body that must come for it.

    meanwhile: called after each answer with the number of answers so far.
    """
    faults: list[str] = []
    answered = 0

    async def one(client: int) -> None:
        nonlocal answered
        for turn in range(rounds):
            target, body = question(client, turn)
            try:
                got = await _ask(address, target)
            except OSError as error:
                faults.append(f"{target}: {error!r}")
                continue
            head, _, content = got.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 ") or content != body:
                faults.append(f"{target}: {got[:200]!r}")
            answered += 1
            meanwhile(answered)

    async def everybody() -> None:
        await asyncio.wait_for(asyncio.gather(*(one(client) for client in range(clients))), deadline)

    asyncio.run(everybody())
    return faults
