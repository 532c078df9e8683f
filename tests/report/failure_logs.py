"""Logs of runs that ran out of memory.

Each text has the form that its source prints, with names and sizes chosen for the test. `source` is
the file of openxla/xla that prints it, or a public report that shows it. Logs of real runs are in
`data/failures`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FailureLog:
    """A log, and the figures that `xlapipe explain --json` must print for it."""

    name: str
    source: str
    text: str
    kind: str
    requested_bytes: int | None = None
    executable_name: str | None = None
    device: str | None = None
    limit_bytes: int | None = None
    held_bytes: int | None = None


GIB = 2**30
MIB = 2**20
_PREFIX = "2026-01-05 10:11:12.123456: {} external/xla/xla/tsl/framework/bfc_allocator.cc:512] "
_W, _I = _PREFIX.format("W"), _PREFIX.format("I")


def bfc_dump(
    *, requested: str, rounded: int, limit: int, held: int, regions: list[int], chunks: list[str]
) -> str:
    """A dump of the BFC allocator of jaxlib 0.8 to 0.10."""
    lines = [
        f"{_W}Allocator (GPU_0_bfc) ran out of memory trying to allocate {requested} (rounded to "
        f"{rounded})requested by op ",
        "If the cause is memory fragmentation maybe the environment variable "
        "'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation. ",
        "Current allocation summary follows.",
        f"{_I}BFCAllocator dump for GPU_0_bfc",
        f"{_I}Bin (256): \tTotal Chunks: 2, Chunks in use: 1. 512B allocated for chunks. 256B in "
        "use in bin. 8B client-requested in use in bin.",
        f"{_I}Bin for {requested} was 256.00MiB, Chunk State: ",
        *(f"{_I}Next region of size {size}" for size in regions),
        *(f"{_I}{chunk}" for chunk in chunks),
        f"{_I}     Summary of in-use Chunks by size: ",
        f"{_I}Sum Total of in-use chunks: {held / GIB:.2f}GiB",
        f"{_I}total_region_allocated_bytes_: {sum(regions)} memory_limit_: {limit} available "
        f"bytes: {limit - sum(regions)} curr_region_allocation_bytes_: {2 * limit}",
        f"{_I}Stats: ",
        f"Limit:            {limit:>20}",
        f"InUse:            {held:>20}",
        f"MaxInUse:         {held:>20}",
        "NumAllocs:                         712",
        f"MaxAllocSize:     {rounded // 2:>20}",
        "Reserved:                            0",
        "PeakReserved:                        0",
        "LargestFreeBlock:                    0",
        "",
        f"{_W}****************************************************************________________xx",
    ]
    return "\n".join(lines) + "\n"


def raised(message: str, *frames: str) -> str:
    """A traceback of Python that ends with an exception of jax."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [f'  File "/site-packages/jax/_src/x.py", line 10, in {frame}', "    return f(x)"]
    return "\n".join([*lines, f"jax.errors.JaxRuntimeError: {message}", ""])


_FULL = bfc_dump(
    requested="4.50GiB",
    rounded=4831838208,
    limit=12 * GIB,
    held=9 * GIB,
    regions=[12 * GIB],
    chunks=[
        "InUse at 7f0000000000 of size 3221225472 next 1",
        "InUse at 7f00c0000000 of size 3221225472 next 2",
        "InUse at 7f0180000000 of size 3221225472 next 3",
        "Free  at 7f0240000000 of size 3221225472 next 18446744073709551615",
    ],
)
_FRAGMENTED = bfc_dump(
    requested="4.50GiB",
    rounded=4831838208,
    limit=12 * GIB,
    held=6 * GIB,
    regions=[12 * GIB],
    chunks=[
        "InUse at 7f0000000000 of size 3221225472 next 1",
        "Free  at 7f00c0000000 of size 3221225472 next 2",
        "InUse at 7f0180000000 of size 3221225472 next 3",
        "Free  at 7f0240000000 of size 3221225472 next 18446744073709551615",
    ],
)
_REFUSED = (
    "2026-01-05 10:11:12.1: I external/xla/xla/stream_executor/cuda/cuda_executor.cc:1193] failed "
    "to allocate 3.00GiB (3221225472 bytes) from device: RESOURCE_EXHAUSTED: : "
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
)
_SQUEEZED = _REFUSED + bfc_dump(
    requested="3.00GiB",
    rounded=3221225472,
    limit=12 * GIB,
    held=1 * GIB,
    regions=[1 * GIB],
    chunks=["InUse at 7f0000000000 of size 1073741824 next 1"],
)

LOGS = (
    FailureLog(
        name="execution, exact bytes and statistics of the buffer assignment",
        source="https://github.com/jax-ml/jax/issues/13428",
        text="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying "
        "to allocate 6291456 bytes.\n"
        "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
        "             parameter allocation:    6.00MiB\n"
        "              constant allocation:         0B\n"
        "        maybe_live_out allocation:    6.00MiB\n"
        "     preallocated temp allocation:         0B\n"
        "                 total allocation:   12.00MiB\n"
        "              total fragmentation:         0B (0.00%)\n"
        "Peak buffers:\n"
        "\tBuffer 1:\n\t\tSize: 6.00MiB\n"
        '\t\tOperator: op_name="jit(join)/jit(main)/concatenate[dimension=0]" '
        'source_file="/home/me/models.py" source_line=12\n'
        "\t\tXLA Label: concatenate\n\t\tShape: f32[4096,128,3]\n\t\t==========================\n\n"
        "\tBuffer 2:\n\t\tSize: 384.0KiB\n\t\tEntry Parameter Subshape: f32[256,128,3]\n"
        "\t\t==========================\n",
        kind="execution",
        executable_name="jit_join",
        requested_bytes=6291456,
    ),
    FailureLog(
        name="execution, the pool is too full",
        source="xla/tsl/framework/bfc_allocator.cc; tf_allocator_adapter.cc",
        text=_FULL
        + "E0105 10:11:12.2  957629 pjrt_stream_executor_client.cc:3045] Execution of replica 0 "
        "failed: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4831838208 bytes. "
        "[tf-allocator-allocation-error='']\n",
        kind="execution",
        requested_bytes=4831838208,
        device="GPU_0",
        limit_bytes=12 * GIB,
        held_bytes=9 * GIB,
    ),
    FailureLog(
        name="execution with the executable's name and a rounded size",
        source="xla/stream_executor/integrations/tf_allocator_adapter.cc, MemoryAllocationError",
        text=raised(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 19.59GiB. "
            "[executable_name='jit_concatenate'] [tf-allocator-allocation-error='']",
            "_python_pjit_helper",
        ),
        kind="execution",
        requested_bytes=round(19.59 * GIB),
        executable_name="jit_concatenate",
    ),
    FailureLog(
        name="execution with the allocator in the sentence, folded by a notebook",
        source="https://github.com/openxla/xla (MemoryAllocationError after jaxlib 0.12)",
        text="JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.95GiB\n"
        "with allocator GPU_0_bfc on device 0.\n"
        "[executable_name='jit_greater'] [tf-allocator-allocation-error='']\n",
        kind="execution",
        requested_bytes=round(1.95 * GIB),
        executable_name="jit_greater",
        device="GPU_0",
    ),
    FailureLog(
        name="fragmentation: free bytes suffice, but not in one piece",
        source="xla/tsl/framework/bfc_allocator.cc, DumpMemoryLog",
        text=_FRAGMENTED
        + raised(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.50GiB. "
            "[executable_name='jit_train_step'] [tf-allocator-allocation-error='']"
        ),
        kind="fragmentation",
        requested_bytes=4831838208,
        executable_name="jit_train_step",
        device="GPU_0",
        limit_bytes=12 * GIB,
        held_bytes=6 * GIB,
    ),
    FailureLog(
        name="another process has the memory, the pool could not grow",
        source="xla/stream_executor/cuda/cuda_executor.cc; bfc_allocator.cc",
        text=_SQUEEZED
        + raised(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.00GiB. "
            "[executable_name='jit_f'] [tf-allocator-allocation-error='']"
        ),
        kind="other_process",
        requested_bytes=3221225472,
        executable_name="jit_f",
        device="GPU_0",
        limit_bytes=12 * GIB,
        held_bytes=1 * GIB,
    ),
    FailureLog(
        name="another process, allocator cuda_async",
        source="xla/stream_executor/gpu/gpu_cudamallocasync_allocator.cc",
        text="E0105 10:11:12.2  95 gpu_cudamallocasync_allocator.cc:359] gpu_async_0 "
        "cuMemAllocAsync failed to allocate 8589934592 bytes: RESOURCE_EXHAUSTED: : "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
        " Reported by CUDA: Free memory/Total memory: 2147483648/25769803776\n"
        "E0105 10:11:12.2  95 gpu_cudamallocasync_allocator.cc:364] Stats: \n"
        "Limit:                     19327352832\nInUse:                      1073741824\n"
        + raised(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8.00GiB. "
            "[executable_name='jit_f'] [tf-allocator-allocation-error='']"
        ),
        kind="other_process",
        requested_bytes=8 * GIB,
        executable_name="jit_f",
        limit_bytes=18 * GIB,
        held_bytes=1 * GIB,
    ),
    FailureLog(
        name="argument: an array that is moved to the device",
        source="https://github.com/patrick-kidger/equinox/issues/737",
        text=raised(
            "RESOURCE_EXHAUSTED: Failed to allocate request for 6.27GiB (6727663616B) on device "
            "ordinal 1",
            "device_put",
            "batched_device_put",
        ),
        kind="argument",
        requested_bytes=6727663616,
        device="GPU_1",
    ),
    FailureLog(
        name="argument on a TPU",
        source="openxla/xla docs/errors, E0100",
        text="ValueError: RESOURCE_EXHAUSTED: E0100: RuntimeBufferAllocationFailure:\n"
        "Error allocating device buffer: Attempting to allocate 556.00M.\n"
        "That was not possible. There are 289.98M free.; (0x1x0_HBM0)\n",
        kind="argument",
        requested_bytes=556 * MIB,
        device="0x1x0_HBM0",
    ),
    FailureLog(
        name="fragmentation on a TPU",
        source="https://github.com/pytorch/xla/issues/3470",
        text="RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of "
        "memory. That was not possible. There are 6.78G free, 0B reserved, and 6.60G reservable.\n",
        kind="fragmentation",
        requested_bytes=round(6.48 * GIB),
    ),
    FailureLog(
        name="a program that a TPU cannot load",
        source="openxla/xla docs/errors, E0101",
        text="XlaRuntimeError: RESOURCE_EXHAUSTED: Error loading program 'jit_embed': Attempting "
        "to reserve 29.49G at the bottom of memory. That was not possible. There are 147.64M free, "
        "0B reserved, and 147.64M reservable. Scope: unknown..: while running replica 0\n",
        kind="execution",
        requested_bytes=round(29.49 * GIB),
        executable_name="jit_embed",
    ),
    FailureLog(
        name="compile on a TPU",
        source="https://github.com/LargeWorldModel/LWM/issues/60; libtpu",
        text="jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. "
        "Ran out of memory in memory space hbm. Used 18.33G of 15.48G hbm. Exceeded hbm capacity "
        "by 2.85G.\n\nTotal hbm usage >= 18.85G:\n    reserved        530.00M \n"
        "    program          17.33G \n    arguments         1.00G \n\n"
        "Output size 0B; shares 0B with arguments.\n\nProgram hbm requirement 17.33G:\n"
        "    global            1.14M\n    HLO temp         17.33G (100.0% utilization: Unpadded "
        "(17.1G) Padded (17.1G), 0.3% fragmentation (50.00M))\n\n"
        "  Largest program allocations in hbm:\n\n  1. Size: 2.00G\n"
        '     Operator: op_name="jit(step)/jvp(Model)/dot_general" source_file="/m/attention.py" '
        "source_line=59\n     Shape: f32[32,4096,4096]{1,2,0:T(8,128)}\n     Unpadded size: 2.00G\n"
        "     XLA label: fusion.12.remat3 = fusion(custom-call.224), kind=kOutput\n"
        "     Allocation type: HLO temp\n     ==========================\n",
        kind="compile",
        executable_name="jit_step",
        requested_bytes=round(18.33 * GIB),
        limit_bytes=round(15.48 * GIB),
    ),
    FailureLog(
        name="compile on a TPU with the module's name",
        source="libtpu 0.0.48",
        text="RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (99.50G) exceeds available HBM (31.25G). HLO module: jit_step.\n",
        kind="compile",
        requested_bytes=round(99.5 * GIB),
        limit_bytes=round(31.25 * GIB),
        executable_name="jit_step",
    ),
    FailureLog(
        name="compile on a TPU, TensorCore and SparseCore",
        source="openxla/xla docs/errors, E1000",
        text="RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.75G, SparseCore Hbm usage 174.25G, "
        "exceeding available bytes: 95.75G\n",
        kind="compile",
        requested_bytes=209 * GIB,
        limit_bytes=round(95.75 * GIB),
    ),
    FailureLog(
        name="compile on a TPU: scratch memory of a kernel",
        source="openxla/xla docs/errors, E1001",
        text="JaxRuntimeError: RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of "
        "memory in memory space vmem while allocating on stack for %fwd.1 = f32[8]{0} call()\n"
        "Scoped allocation with size 19.75M and limit 16.00M exceeded scoped vmem limit by "
        "3.75M.\n",
        kind="compile",
        requested_bytes=round(19.75 * MIB),
        limit_bytes=16 * MIB,
    ),
    FailureLog(
        name="compile for a GPU: shared memory of a kernel",
        source="xla/backends/gpu/codegen/triton",
        text="JaxRuntimeError: RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested "
        "270336, available: 232448, context: [triton_gemm]\n",
        kind="compile",
        requested_bytes=270336,
        limit_bytes=232448,
    ),
    FailureLog(
        name="autotuning",
        source="https://github.com/jax-ml/jax/issues/33715",
        text=raised(
            "INTERNAL: Autotuning failed for HLO: %conv.1 = (f32[1,64,1200,1200]{3,2,1,0}, "
            'u8[0]{0}) custom-call(%a, %b), custom_call_target="__cudnn$convForward" with error: '
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.20GiB.",
            "backend_compile_and_load",
        ),
        kind="autotuning",
        requested_bytes=round(2.2 * GIB),
    ),
    FailureLog(
        name="autotuning, known only from the traceback",
        source="jax/_src/compiler.py; tf_allocator_adapter.cc",
        text=raised(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 96.00MiB. "
            "[tf-allocator-allocation-error='']",
            "_cached_compilation",
            "compile_or_get_cached",
            "backend_compile",
        ),
        kind="autotuning",
        requested_bytes=96 * MIB,
    ),
    FailureLog(
        name="NCCL",
        source="https://github.com/openxla/xla/pull/7201",
        text=raised(
            "INTERNAL: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled "
            "cuda error (run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry "
            "(may be unrelated) 'Cuda failure 2 'out of memory''. [executable_name='jit_step']"
        ),
        kind="library",
        executable_name="jit_step",
    ),
    FailureLog(
        name="NCCL's warnings of an older version, and XLA's report",
        source="https://github.com/google-research/t5x/issues/832",
        text="node-25:95:95 [0] external/nccl_archive/src/enqueue.cc:128 NCCL WARN Cuda failure "
        "'out of memory'\nnode-25:95:95 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>\n"
        "NCCL version 2.13.4+cudaCUDA_MAJOR.CUDA_MINOR\n\n"
        "node-25:95:95 [0] external/nccl_archive/src/init.cc:1075 "
        "NCCL WARN Cuda failure 'out of memory'\nnode-25:95:95 [0] NCCL INFO "
        "external/nccl_archive/src/init.cc:1106 -> 1\n2022-10-13 04:16:09.849660: E "
        "xla/pjrt/pjrt_stream_executor_client.cc:2130] Execution of replica 0 failed: INTERNAL: "
        "nccl_utils.cc:266: NCCL operation ncclCommInitRank(comm.get(), nranks, id, rank) failed: "
        "unhandled cuda error\n",
        kind="library",
    ),
    FailureLog(
        name="NCCL, with the executable in a profiler annotation",
        source="https://github.com/huggingface/accelerate/issues/2545; "
        "https://github.com/openxla/xla/pull/7201",
        text="2024-03-13 17:12:13.441463: W xla/service/gpu/runtime/support.cc:58] Intercepted XLA "
        "runtime error:\n"
        + raised(
            "INTERNAL: Failed to execute XLA Runtime executable: run time error: custom call "
            "'xla.gpu.all_reduce' failed: nccl_utils.cc:305: NCCL operation "
            "ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error (run with "
            "NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) "
            "'Cuda failure 'out of memory''.; current tracing scope: all-reduce-start; "
            "current profiling annotation: "
            "XlaModule:#hlo_module=jit_step,program_id=25#."
        ),
        kind="library",
        executable_name="jit_step",
    ),
    FailureLog(
        name="NCCL's own warning",
        source="NCCL src/include/alloc.h",
        text="node1:95:101 [0] NCCL WARN Failed to CUDA calloc async 6291456 bytes\n"
        + raised(
            "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error 'out of "
            "memory'. [executable_name='jit_step']"
        ),
        kind="library",
        requested_bytes=6291456,
        executable_name="jit_step",
    ),
    FailureLog(
        name="the code of a kernel finds no memory",
        source="xla/stream_executor/cuda/cuda_executor.cc",
        text=raised(
            "RESOURCE_EXHAUSTED: [0] Failed to load in-memory CUBIN (compiled for a different "
            "GPU?).: CUDA_ERROR_OUT_OF_MEMORY: out of memory [executable_name='jit_advance']"
        ),
        kind="library",
        executable_name="jit_advance",
        device="GPU_0",
    ),
    FailureLog(
        name="a CUDA graph finds no memory",
        source="xla/service/gpu/runtime (command buffers)",
        text=raised(
            "RESOURCE_EXHAUSTED: Underlying backend ran out of memory trying to instantiate "
            "command buffer with 12 (total of 40 alive graphs in the process). You can try to (a) "
            "Give more memory to the driver by reducing XLA_CLIENT_MEM_FRACTION"
        ),
        kind="library",
    ),
    FailureLog(
        name="cuDNN's handle",
        source="https://github.com/jax-ml/jax/issues/12461; cuda_dnn.cc",
        text="E0105 10:11:12.2 95 cuda_dnn.cc:522] Could not create cudnn handle: "
        "CUDNN_STATUS_INTERNAL_ERROR\n",
        kind="library",
    ),
    FailureLog(
        name="cuBLAS",
        source="xla/stream_executor/cuda/cuda_blas.cc",
        text=raised("INTERNAL: the library call failed: CUBLAS_STATUS_ALLOC_FAILED"),
        kind="library",
    ),
    FailureLog(
        name="cuSOLVER's handle",
        source="jaxlib/gpu/solver_handle_pool.cc",
        text=raised(
            "INTERNAL: jaxlib/gpu/solver_handle_pool.cc:37: operation gpusolverDnCreate(&handle) "
            "failed: cuSolver internal error"
        ),
        kind="library",
    ),
    FailureLog(
        name="another call of CUDA",
        source="xla/stream_executor/cuda/cuda_status.cc",
        text=raised(
            "RESOURCE_EXHAUSTED: CUDA error: Failed to instantiate CUDA graph: "
            "CUDA_ERROR_OUT_OF_MEMORY: out of memory [executable_name='jit_f']"
        ),
        kind="library",
        executable_name="jit_f",
    ),
    FailureLog(
        name="the CUDA context finds no memory",
        source="xla/stream_executor/cuda/cuda_context.cc",
        text="E0105 10:11:12.2 95 cuda_platform.cc:51] failed call to cuDevicePrimaryCtxRetain: "
        "INTERNAL: CUDA error: : CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
        kind="other_process",
    ),
    FailureLog(
        name="a log that ends with the allocator's dump",
        source="xla/tsl/framework/bfc_allocator.cc",
        text=_FULL,
        kind="execution",
        requested_bytes=4831838208,
        device="GPU_0",
        limit_bytes=12 * GIB,
        held_bytes=9 * GIB,
    ),
)

# Texts about memory that report no failure of a run.
NO_FAILURES = (
    "step 100: loss 2.5\n",
    "",
    "W hlo_rematerialization.cc:3282] Can't reduce memory use below 10.64GiB (11428802214 bytes) "
    "by rematerialization; only reduced to 71.27GiB (76523901244 bytes)\n",
    f"{_W}Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.72GiB with "
    "freed_by_count=0. The caller indicates that this is not a failure, but this may mean that "
    "there could be performance gains if more memory were available.\n",
    "INTERNAL: NCCL operation ncclAllReduce() failed: invalid argument\n",
    "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) 'Cuda "
    "failure 700'.\n",
    "E1122 07:30:30.8 3219 gpu_hlo_schedule.cc:1068] The byte size of input/output arguments "
    "(8589934596) exceeds the base limit (6006243328). This indicates an error in the "
    "calculation!\n",
    "I pjrt: XLA backend allocating 10251200102 bytes on device 0 for BFCAllocator.\n",
)
