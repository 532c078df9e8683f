"""Gives XLA the results of tuned instructions while it compiles them.

What XLA tunes is known after most of its passes, of which those that fuse take a third of a
compile. There XLA dumps the module twice, and then looks each result up in a folder. Both files of
that dump are named pipes here: XLA waits at the second one until the results are in the folder.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from xlapipe.compile.wire_format import field, number
from xlapipe.time.predicted_locks.known_results import KnownResult, KnownResults

ANSWERED_OPTIONS = {"xla_dump_hlo_as_proto": True, "xla_dump_hlo_pass_re": "^config-assigner$"}
"""XLA's options for `answering`, beside the folder of results."""
# The files of the dump that are pipes, after the module's name.
_PIPES = (
    "before_config_assignment.hlo.pb",
    "0000.config-assigner.after_conv-fp8-fallback.before_config-assigner.hlo.pb",
)
_LOOK_SECONDS = 0.05
_TOKEN = re.compile(r"[\w.-]+|[{}]")
# Numbers and messages of fields, of xla/autotune_cache.proto and what it imports.
_FIELDS = {
    "Config": "backend=1 backend_config=2:BackendConfig",
    "BackendConfig": "gemm=1:GemmKey triton=2:TritonGemmKey block_level=3:BlockLevelFusionConfig "
    "algorithm=4:AlgorithmProto native_emitter=6:NativeEmitterBackendConfig",
    "GemmKey": "algorithm=1 autotune_workspace_size=2",
    "TritonGemmKey": "block_m=1 block_n=2 block_k=3 split_k=4 num_stages=5 num_warps=6 num_ctas=7 "
    "is_tma_allowed=8 is_warp_specialization_allowed=9 waves_per_eu=10 group_size=11",
    "BlockLevelFusionConfig": "num_warps=2 output_tiles=3:Tile num_ctas=4 num_stages=5 "
    "is_tma_allowed=6 is_warp_specialization_allowed=7 waves_per_eu=8 group_size=10",
    "Tile": "sizes=1",
    "AlgorithmProto": "algo_id=1 math_type=2 tuning_knobs=4:TuningKnob is_cudnn_frontend=5 "
    "workspace_size=6:UInt64Value",
    "TuningKnob": "key=1 value=2",
    "UInt64Value": "value=1",
    "NativeEmitterBackendConfig": "unroll_factor=2",
}
_CONSTANTS = (
    "false=0 true=1 CUDNN=1 TRITON=2 CUBLASLT=4 BLOCK_LEVEL_EMITTER=9 NATIVE_EMITTER=10 "
    "CUBLASLT_FISSION=13 DEFAULT_MATH=0 TENSOR_OP_MATH=1"
)


class PredictedLockError(Exception):
    """XLA did not compile a program with predicted tuning."""


@contextmanager
def answering(dump: Path, module: str, answer: Callable[[bytes], None]) -> Iterator[list[bool]]:
    """While XLA compiles in this context, `answer` gets the module before results are assigned.

    XLA dumps to `dump`, where the files of a module begin with `module`. Yields a list that is not
    empty once XLA has waited for the answer.
    """
    names = {dump.with_name(f"{dump.name}-{n}"): name for n, name in enumerate(_PIPES)}
    dump.mkdir(parents=True, exist_ok=True)
    for pipe, name in names.items():
        os.mkfifo(pipe)
        (dump / f"{module}.{name}").symlink_to(pipe)  # the dump may be removed meanwhile
    waited: list[bool] = []

    def wait() -> None:
        first, second = names
        if content := first.read_bytes():
            try:
                answer(content)
            finally:
                waited.extend([True] if second.read_bytes() else [])

    thread = Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield waited
    finally:
        while thread.is_alive():
            for pipe in names:  # which XLA has not opened
                with suppress(OSError):
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            thread.join(_LOOK_SECONDS)
        for pipe, name in names.items():
            pipe.unlink()
            (dump / f"{module}.{name}").unlink(missing_ok=True)


def write_results(folder: Path, chosen: Mapping[str, KnownResult], known: KnownResults) -> None:
    """Writes results where XLA looks them up, by fingerprint; refuses a field that is not known."""
    (folder / known.device).mkdir(parents=True, exist_ok=True)
    environment = field(1, known.codegen.encode())
    for key, result in chosen.items():
        target = field(1, known.device.encode()) + field(3, key.encode())
        value = field(1, _message(iter(_TOKEN.findall(result.config)), "Config"))
        value += field(2, result.version.encode())
        entry = field(1, field(1, target) + field(2, environment)) + field(2, value)
        (folder / known.device / f"{key}.pb").write_bytes(entry)


def _message(tokens: Iterator[str], kind: str) -> bytes:
    """A message in text form, without colons, as bytes."""
    fields, constants = (
        dict(part.split("=") for part in parts.split()) for parts in (_FIELDS[kind], _CONSTANTS)
    )
    content = b""
    for name in tokens:
        if name == "}":
            break
        place, _, inner = fields.get(name, "").partition(":")
        value = next(tokens)
        value = constants.get(value, value)
        if inner and value == "{":
            content += field(int(place), _message(tokens, inner))
        elif place and not inner and value.isdecimal():
            content += number(int(place), int(value))
        else:
            raise PredictedLockError(f"a result of tuning has an unknown {name}: {value}")
    return content
