"""Messages of runs that ran out of memory, in the forms that public reports show.

Each is a line or a few with the form of the report that `source` names; names of users and paths
are replaced.
"""

from tests.report.failure_logs import GIB, MIB, FailureLog

_OCTO = "https://github.com/octo-models/octo/issues/22"
_JAX = "https://github.com/jax-ml/jax/issues/"

PUBLIC_LOGS = (
    FailureLog(
        name="a constant of the program",
        source=_OCTO,
        text="Traceback (most recent call last):\n"
        '  File "/home/me/eval.py", line 193, in main\n    actions = policy_fn(\n'
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to allocate 98697216 bytes for new "
        "constant\n",
        kind="execution",
        requested_bytes=98697216,
    ),
    FailureLog(
        name="a constant of the program, jaxlib 0.3",
        source="https://github.com/kalininalab/alphafold_non_docker/issues/55",
        text="2023-01-01 07:07:23.507834: E external/org_tensorflow/tensorflow/compiler/xla/pjrt/"
        "pjrt_stream_executor_client.cc:2130] Execution of replica 0 failed: INTERNAL: Failed to "
        "allocate 50331648 bytes for new constant\n",
        kind="execution",
        requested_bytes=50331648,
    ),
    FailureLog(
        name="XLA's CPU client",
        source="https://github.com/PyAutoLabs/PyAutoFit/pull/1453; xla/pjrt/cpu",
        text="jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 62418304000 "
        "bytes.\n",
        kind="execution",
        requested_bytes=62418304000,
    ),
    FailureLog(
        name="jaxlib 0.1",
        source=_JAX + "788",
        text="[1] 2019-06-13 01:17:08.886805: E external/org_tensorflow/tensorflow/compiler/xla/"
        "python/local_client.cc:672] Execution of replica 0 failed: Resource exhausted: Out of "
        "memory while trying to allocate 5520758552 bytes.\n",
        kind="execution",
        requested_bytes=5520758552,
    ),
    FailureLog(
        name="Elixir's EXLA",
        source="https://github.com/openxla/xla/issues/10660",
        text="** (RuntimeError) Out of memory while trying to allocate 117964800 bytes.\n"
        "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
        "             parameter allocation:  112.50MiB\n"
        "                 total allocation:  225.00MiB\n",
        kind="execution",
        requested_bytes=117964800,
    ),
    FailureLog(
        name="arguments of 1.25 TiB, by the allocator",
        source=_JAX + "27354",
        text="2025-03-23 20:28:49.804409: E external/xla/xla/service/gpu/gpu_hlo_schedule.cc:654] "
        "The byte size of input/output arguments (1374526449600) exceeds the base limit "
        "(25554419712). This indicates an error in the calculation!\n"
        "2025-03-23 20:28:59.832181: W external/xla/xla/tsl/framework/bfc_allocator.cc:501] "
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.25TiB (rounded to "
        "1374521760000)requested by op \n",
        kind="execution",
        requested_bytes=1374521760000,
        device="GPU_0",
    ),
    FailureLog(
        name="tolerated warnings before the failure",
        source="https://github.com/flatironinstitute/nemos/issues/345",
        text="2025-05-18 21:59:55.086788: W external/xla/xla/tsl/framework/bfc_allocator.cc:310] "
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB with freed_by_count=0. "
        "The caller indicates that this is not a failure, but this may mean that there could be "
        "performance gains if more memory were available.\n"
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 3199993600 bytes.\n",
        kind="execution",
        requested_bytes=3199993600,
    ),
    FailureLog(
        name="autotuning of a convolution, jaxlib 0.5",
        source="https://github.com/prs-eth/thera/issues/10",
        text="jaxlib.xla_extension.XlaRuntimeError: UNKNOWN: Failed to determine best cudnn "
        "convolution algorithm for:\n%cudnn-conv-bias-activation.641 = "
        "(f32[1,64,1200,1200]{3,2,1,0}, u8[0]{0}) custom-call(%concatenate.372), "
        'custom_call_target="__cudnn$convBiasActivationForward"\n\nOriginal error: '
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5899223040 bytes.\n",
        kind="autotuning",
        requested_bytes=5899223040,
    ),
    FailureLog(
        name="a TPU's memory in pieces",
        source=_JAX + "14304",
        text="XlaRuntimeError: RESOURCE_EXHAUSTED: Could not allocate 10485760 bytes in memory "
        "0x0x0_HBM0; 4374528 bytes allocatable, 14942208 bytes available\n",
        kind="fragmentation",
        requested_bytes=10485760,
        device="0x0x0_HBM0",
    ),
    FailureLog(
        name="a TPU's memory in pieces, before a program is loaded",
        source="https://github.com/pytorch/xla/issues/3470",
        text="  (1) RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That "
        "was not possible. There are 6.78G free, 0B reserved, and 3.33G reservable.\n",
        kind="fragmentation",
        requested_bytes=round(6.48 * GIB),
    ),
    FailureLog(
        name="a program without a name that a TPU cannot load",
        source="https://github.com/pytorch/xla/issues/4847",
        text="2023-04-08 11:22:09.148143: F tensorflow/tsl/platform/statusor.cc:33] Attempting to "
        "fetch value instead of handling error RESOURCE_EXHAUSTED: Error loading program: "
        "Attempting to reserve 7.04G at the bottom of memory. That was not possible. There are "
        "6.90G free, 0B reserved, and 6.90G reservable.\n",
        kind="execution",
        requested_bytes=round(7.04 * GIB),
    ),
    FailureLog(
        name="compile on a TPU with an error code",
        source="https://github.com/EnzymeAD/Enzyme-JAX/pull/2422",
        text="ERROR: LoadError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile "
        "permanent error. Ran out of memory in memory space hbm. Used 215.17G of 31.25G hbm. "
        "Exceeded hbm capacity by 183.92G.\n",
        kind="compile",
        requested_bytes=round(215.17 * GIB),
        limit_bytes=round(31.25 * GIB),
    ),
    FailureLog(
        name="compile on a TPU that ends early",
        source=_JAX + "7822",
        text="jax.errors.JaxRuntimeError: Compilation failure: Aborting compilation early because "
        "it's unlikely to have enough memory. Requires 3.47E, has 14.49G available.\n",
        kind="compile",
        requested_bytes=round(3.47 * 2**60),
        limit_bytes=round(14.49 * GIB),
    ),
    FailureLog(
        name="compile on a TPU, with the module after the figures",
        source="libtpu 0.0.48",
        text="jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU "
        "compile permanent error. Ran out of memory in memory space hbm. Used 33.27G of 30.75G "
        "hbm. Exceeded hbm capacity by 2.52G. HLO module: jit_train_step. Memory usage report: \n",
        kind="compile",
        requested_bytes=round(33.27 * GIB),
        limit_bytes=round(30.75 * GIB),
        executable_name="jit_train_step",
    ),
    FailureLog(
        name="compile on a TPU without figures",
        source="https://github.com/tensorflow/tensorflow/issues/26893",
        text="Compilation failed: Compilation failure: Ran out of memory in memory space vmem. "
        "Please file a bug against XLA.\n",
        kind="compile",
    ),
    FailureLog(
        name="scratch memory of a TPU's kernel",
        source="https://github.com/pytorch/xla/issues/9524",
        text="RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent "
        "error. Ran out of memory in memory space vmem. Used 19.00M of 16.00M vmem. Exceeded vmem "
        "capacity by 3.00M.\n",
        kind="compile",
        requested_bytes=19 * MIB,
        limit_bytes=16 * MIB,
    ),
    FailureLog(
        name="shared memory of a Triton kernel",
        source="triton/runtime/errors.py",
        text="triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: "
        "270336, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.\n",
        kind="compile",
        requested_bytes=270336,
        limit_bytes=232448,
    ),
    FailureLog(
        name="shared memory of a kernel of Mosaic GPU",
        source="jax/experimental/mosaic/gpu/core.py",
        text="ValueError: Mosaic GPU kernel exceeds available shared memory: smem_bytes=270336 > "
        "max_smem_bytes=232448\n",
        kind="compile",
        requested_bytes=270336,
        limit_bytes=232448,
    ),
    FailureLog(
        name="shared memory of a kernel, by ptxas",
        source="ptxas of CUDA",
        text="ptxas error   : Entry function 'fusion_1' uses too much shared data (0x10000 bytes, "
        "0xc000 max)\n",
        kind="compile",
        requested_bytes=65536,
        limit_bytes=49152,
    ),
    FailureLog(
        name="cuDNN's handle on a device with free memory",
        source=_JAX + "23145",
        text="2024-08-20 16:26:58.037892: E external/xla/xla/stream_executor/cuda/cuda_dnn.cc:439] "
        "\n\nCould not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n"
        "2024-08-20 16:26:58.037952: E external/xla/xla/stream_executor/cuda/cuda_dnn.cc:443] "
        "Memory usage: 46637514752 bytes free, 47587131392 bytes total.\n"
        "Traceback (most recent call last):\n"
        "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization "
        "failed. Look at the errors above for more details.\n",
        kind="library",
    ),
    FailureLog(
        name="cuBLAS's handle beside several processes",
        source="https://github.com/pytorch/xla/issues/3162",
        text="[1,1]<stderr>:2021-10-12 20:59:07.607617: E tensorflow/stream_executor/cuda/"
        "cuda_blas.cc:226] failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED\n",
        kind="library",
    ),
    FailureLog(
        name="cuSOLVER's handle, older jaxlib",
        source="jaxlib/cuda/cusolver_kernels.cc",
        text="jaxlib.xla_extension.XlaRuntimeError: INTERNAL: jaxlib/cuda/cusolver_kernels.cc:44: "
        "operation cusolverDnCreate(&handle) failed: cuSolver internal error\n",
        kind="library",
    ),
    FailureLog(
        name="NCCL, with the size of its allocation",
        source="https://github.com/openxla/xla/pull/7201; NCCL src/include/alloc.h",
        text="jaxlib.xla_extension.XlaRuntimeError: INTERNAL: NCCL operation ncclCommInitRankConfig"
        "(&comm, nranks, id, rank, &config) failed: unhandled cuda error (run with NCCL_DEBUG=INFO "
        "for details). Last NCCL warning(error) log entry (may be unrelated) 'Failed to CUDA "
        "calloc 6291456 bytes'.\n",
        kind="library",
        requested_bytes=6291456,
    ),
    FailureLog(
        name="the code of a kernel",
        source="https://github.com/iit-DLSLab/mpx/issues/11",
        text="E1122 00:10:47.231964  290312 pjrt_stream_executor_client.cc:3077] Execution of "
        "replica 0 failed: RESOURCE_EXHAUSTED: Failed to load in-memory CUBIN (compiled for a "
        "different GPU?).: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
        kind="library",
    ),
    FailureLog(
        name="a CUDA graph, older jaxlib",
        source="xla/stream_executor/cuda/cuda_driver.cc",
        text="jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to instantiate CUDA graph: "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
        kind="library",
    ),
    FailureLog(
        name="the CUDA context of several devices",
        source=_JAX + "10830",
        text="2022-05-25 16:37:26.030888: W external/org_tensorflow/tensorflow/compiler/xla/"
        "service/platform_util.cc:200] unable to create StreamExecutor for CUDA:3: failed "
        "initializing StreamExecutor for CUDA device ordinal 3: INTERNAL: failed call to "
        "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: "
        "34089730048\n",
        kind="other_process",
        device="GPU_3",
    ),
    FailureLog(
        name="PyTorch in the same process",
        source="torch/csrc, c10/cuda/CUDACachingAllocator.cpp",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacity of 23.64 GiB of which 1.20 GiB is free.\n",
        kind="library",
        requested_bytes=2 * GIB,
        device="GPU_0",
    ),
    FailureLog(
        name="numpy",
        source="numpy/_core/_exceptions.py",
        text="numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array "
        "with shape (1000000000,) and data type float64\n",
        kind="argument",
        requested_bytes=round(7.45 * GIB),
        device="host",
    ),
    FailureLog(
        name="Slurm's report that the host's memory ran out",
        source="slurmstepd",
        text="slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks "
        "have been OOM Killed.\n",
        kind="execution",
        device="host",
    ),
)
