"""What made-up jobs write: texts, and scripts that say when each rank of `bench.crowd` writes what.

Pure, and the same in every run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import TypeAlias

Script: TypeAlias = Iterator[tuple[float, bytes]]
"""Seconds since the story began, and what is written then."""
Story: TypeAlias = Callable[[str, int], Script]

_BLOCK = 16 * 1024 * 1024
"""Longer than any window of the compressor: text that comes again after it is new text to it."""
_CONSTANT = "2026-11-15 14:02:11 INFO step 1234 loss 0.1234 lr 1e-4 throughput 1234 tok/s node n1\n"

_START = (
    "NCCL INFO Bootstrap : Using eth0",
    "NCCL INFO NET/Plugin : No plugin found, using internal implementation",
    "NCCL INFO comm ready, 24 channels",
)
_TRACE = (
    "Traceback (most recent call last):",
    '  File "train.py", line 212, in <module>',
    "    loss.backward()",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
)


def log_text(size: int) -> bytes:
    """What a training job writes: mostly the same words, and numbers that never are."""
    chance = Random(7)
    lines: list[str] = []
    made = step = 0
    while made < min(size, _BLOCK):
        step += 1
        line = (
            f"2026-11-15T{step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}."
            f"{chance.randrange(1000):03d}Z INFO  [rank {step % 8}] train.loop: step={step} "
            f"loss={1.5 + chance.random():.6f} lr={3e-4 * (1 - step / 1e7):.3e} "
            f"grad_norm={3 * chance.random():.4f} tokens/s={chance.randrange(40_000, 60_000)} "
            f"mem={chance.randrange(600, 790) / 10}GiB\n"
        )
        if step % 97 == 0:
            peer = ".".join(str(chance.randrange(256)) for _ in range(4))
            line += f"WARNING nccl: NET/IB: completion from peer {peer} with status=12 len=4096\n"
        lines.append(line)
        made += len(line)
    block = "".join(lines).encode()[:_BLOCK]
    return (block * -(-size // len(block)))[:size]


def constant_text(size: int) -> bytes:
    """One line again and again, which a compressor takes for nothing."""
    line = _CONSTANT.encode()
    return (line * -(-size // len(line)))[:size]


def _line(text: str) -> bytes:
    return text.encode() + b"\n"


def training(node: str, rank: int) -> Script:
    """Starts alike everywhere, trains with a progress bar, one rank fails, then it is quiet."""
    dice = Random(f"{node}:{rank}")
    begin = dice.random() * 0.6
    for number, text in enumerate(_START):
        yield begin + number * 0.05, _line(text)
    if rank == 13:
        yield 1.4, b"\x1b[33mWARN\x1b[0m IB link is down, falling back to TCP\n"
    for step in range(1, 6):
        at = 2.0 * step + dice.random() * 0.3
        if rank == 0:
            for part in range(10):
                done = (part + 1) * 10
                bar = f"\rstep {step} {done:3}%|{'█' * (done // 10):10}|"
                yield 2.0 * step + part * 0.15 - 1.5, bar.encode()
            yield at, f"\rstep {step} 100%|{'█' * 10}| loss {4 / step:.3f}\n".encode()
        elif rank % 64 == 0:
            told = {"level": "info", "step": step, "tokens_s": dice.randrange(9000, 9999)}
            yield at, _line(json.dumps(told))
    if rank == 77:
        for number, text in enumerate(_TRACE):
            yield 12.0 + number * 0.001, _line(text)
    else:
        lost = 12.5 + dice.random() * 0.3
        yield lost, _line("NCCL WARN [Rank 77] remote process exited or there was a network error")
    yield 3600.0, b"never\n"


def flood(node: str, rank: int) -> Script:
    """Two hundred lines a second from every rank for ten seconds, then quiet."""
    for tick in range(20):
        lines = (f"{node} {rank} debug buffer {tick * 100 + n} flushed\n" for n in range(100))
        yield tick * 0.5, "".join(lines).encode()
    yield 3600.0, b"never\n"


STORIES: dict[str, Story] = {"training": training, "flood": flood}
