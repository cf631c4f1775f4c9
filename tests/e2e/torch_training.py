"""Trains a small net on several ranks, as people write it: PyTorch, MLflow and OpenTelemetry.

    torch_training.py EPOCHS WRITES [LOADS]

It writes the checkpoint WRITES and begins with the checkpoint LOADS. It names nothing of Lattice:
`lattice-run` in its environment does that. Run by tests/e2e/test_torch_training.py as a job.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import mlflow
import torch
import torch.distributed as dist
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

STEPS, STEP_S = 12, 0.1
RANK, RANKS = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def traced() -> trace.Tracer:
    folder = Path("spans", os.environ["SLURM_JOB_ID"])
    folder.mkdir(parents=True, exist_ok=True)
    provider = TracerProvider()
    out = (folder / f"rank-{RANK}.jsonl").open("w", buffering=1)
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("train")


def epoch(net: torch.nn.Module, optimizer: torch.optim.Optimizer, seen: torch.Tensor) -> float:
    """One pass. The gradients of all ranks are averaged, so all wait for the slowest."""
    total = 0.0
    for _ in range(STEPS):
        until = time.monotonic() + STEP_S
        # As much work as fits, as augmentation does: the time of a step is that of its data.
        while time.monotonic() < until:
            seen = torch.tanh(seen @ seen.T @ seen / seen.shape[0])
        batch = torch.randn(64, 32)
        loss = ((net(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for each in net.parameters():
            dist.all_reduce(each.grad)
            each.grad /= RANKS
        optimizer.step()
        total += loss.item()
    return total / STEPS


def save(net: torch.nn.Module, path: Path) -> None:
    if RANK == 0:
        torch.save(net.state_dict(), path)


def main(epochs: int, writes: Path, loads: Path | None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    tracer = traced()
    dist.init_process_group("gloo", rank=RANK, world_size=RANKS)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    if loads is not None:
        net.load_state_dict(torch.load(loads))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    seen = torch.randn(96, 96)
    if RANK == 0:
        mlflow.start_run(run_name="fit")
        mlflow.log_params({"lr": 0.01, "epochs": epochs, "ranks": RANKS})
        if loads is not None:
            mlflow.set_tag("checkpoint.loaded.sha256", checksum(loads))
    with tracer.start_as_current_span("training.fit"):
        for number in range(epochs):
            with tracer.start_as_current_span("train.epoch"):
                loss = epoch(net, optimizer, seen)
            if RANK == 0:
                now = {"loss": loss, "lr": schedule.get_last_lr()[0], "epoch": number}
                mlflow.log_metrics(now, step=number)
            schedule.step()
        with tracer.start_as_current_span("checkpoint.save"):
            save(net, writes)
    if RANK == 0:
        mlflow.set_tag("checkpoint.saved.sha256", checksum(writes))
        mlflow.end_run()
        with mlflow.start_run(run_name="test"):
            mlflow.set_tag("checkpoint.loaded.sha256", checksum(writes))
            mlflow.log_metric("test_loss", loss)
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
