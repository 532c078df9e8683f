"""List the GPUs and TPUs to compile for.

xlapipe targets
    GPUs and TPUs, their memory and bandwidth
xlapipe targets --json
    the same for programs
"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json, print_text
from xlapipe.report.pages import aligned_rows
from xlapipe.report.units import rounded

if TYPE_CHECKING:
    from xlapipe.devices.targets.tpu_catalogue import TpuRow

OPTIONS: Options = {}


def run(options: argparse.Namespace) -> int:
    from xlapipe.devices.targets.catalogue import catalogue
    from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
    from xlapipe.report.records import named

    gpus, tpus = catalogue(), tpu_catalogue().values()
    if options.json:
        print_json(
            [
                {
                    **named(gpu, "name", "description", "compute_capability", "unsupported"),
                    "device_memory_bytes": gpu.device_memory_size,
                    "supported": gpu.unsupported is None,
                }
                for gpu in gpus
            ]
            + [
                {
                    **asdict(tpu),
                    "compute_capability": None,
                    "device_memory_bytes": tpu.hbm_bytes,
                    "supported": True,
                    "unsupported": None,
                }
                for tpu in tpus
            ]
        )
        return 0
    rows = [("target", "compute", "memory", "device", "")]
    rows += [
        (
            gpu.name,
            str(gpu.compute_capability),
            rounded(gpu.device_memory_size),
            gpu.description,
            f"not supported: {gpu.unsupported}" if gpu.unsupported else "",
        )
        for gpu in gpus
    ]
    rows += [
        (tpu.name, "TPU", rounded(tpu.hbm_bytes), tpu.description, _figures(tpu)) for tpu in tpus
    ]
    for line in aligned_rows(rows, right={1, 2}):
        print_text(line)
    return 0


def _figures(tpu: "TpuRow") -> str:
    return (
        f"usable {rounded(tpu.usable_bytes(None))}, "
        f"VMEM {rounded(tpu.vmem_bytes * tpu.cores_per_device)}, "
        f"{tpu.bf16_peak / 1e12:,.0f} bf16 TFLOP/s, {tpu.hbm_bandwidth / 1e9:,.0f} GB/s"
    )
