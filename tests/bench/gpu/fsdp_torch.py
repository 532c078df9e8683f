"""The training step of `fsdp-mlp` in torch: FSDP2 (`fully_shard` per layer) with torch.compile.

One process per GPU; float32 parameters and moments; gathers, compute and reductions in bfloat16;
fused Adam.
"""

import itertools
import json
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fsdp_cases import HIDDEN, LAYERS, PROFILED_STEPS, STEPS_PER_SAMPLE, Case, cases
from overlap import Kernel, divide
from timing import timed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# All layers free their gathered weights after forward, as in this repository; or all but the last
# layer, which needs them first in backward.
VARIANTS = ("FSDP2, torch.compile", "FSDP2, torch.compile, last layer kept")
# Values of CUDA_DEVICE_MAX_CONNECTIONS: the default, and that of this repository's side.
CONNECTIONS = (None, "1")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(HIDDEN, HIDDEN, device="cuda"))
        nn.init.normal_(self.kernel, std=(2 / HIDDEN) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.kernel).relu()


def training_step(case: Case, variant: str) -> Callable[[int], torch.Tensor]:
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    mesh = init_device_mesh("cuda", (case.devices,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for number, layer in enumerate(model):
        layer.compile(dynamic=False)
        reshard = number < LAYERS - 1 or "kept" not in variant
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(case.batch, HIDDEN, device="cuda", dtype=torch.bfloat16)
    target = x.abs()

    @torch.compile(dynamic=False)
    def loss_of(y: torch.Tensor) -> torch.Tensor:
        error = y.float() - target.float()
        return (error * error).mean()

    def step(number: int) -> torch.Tensor:
        loss = loss_of(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def profiled(step: Callable[[int], torch.Tensor]) -> dict[str, float] | None:
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for number in range(PROFILED_STEPS):
            step(number)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kernels = [
        Kernel(event["name"], event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6)
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    division = divide(kernels, PROFILED_STEPS)
    return division and asdict(division)


def one_process(rank: int, devices: int, port: int, out: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=devices,
        device_id=torch.device("cuda", rank),
    )
    timings = []
    for case in cases(torch.cuda.device_count()):
        if case.devices != devices:
            continue
        connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
        for variant in VARIANTS if connections is None else VARIANTS[-1:]:
            step = training_step(case, variant)
            # Every process must make the same number of calls.
            timing = timed(
                case.name,
                variant if connections is None else f"{variant}, {connections} connection",
                step,
                lambda _: torch.cuda.synchronize(),
                calls=STEPS_PER_SAMPLE,
            )
            timings.append(asdict(timing) | {"division": profiled(step)})
            del step
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    if rank == 0:
        Path(out).write_text(json.dumps(timings), encoding="utf-8")
    dist.destroy_process_group()


def main() -> None:
    timings: list[dict[str, Any]] = []
    counts = dict.fromkeys(case.devices for case in cases(torch.cuda.device_count()))
    for devices, connections in itertools.product(counts, CONNECTIONS):
        if connections is not None:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
        else:
            os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "timings.json")
            torch.multiprocessing.spawn(one_process, (devices, port, out), nprocs=devices)
            timings += json.loads(Path(out).read_text(encoding="utf-8"))
    name = torch.cuda.get_device_name()
    framework = f"torch {torch.__version__}"
    print(json.dumps({"framework": framework, "device": name, "timings": timings}))


if __name__ == "__main__":
    main()
