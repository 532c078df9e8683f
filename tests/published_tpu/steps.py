"""Training steps whose time Google published, as programs of the same shapes.

Source: AI-Hypercomputer/tpu-recipes@c8cfe2f6, `training/`; of v5p, AI-Hypercomputer/maxtext's
`configs/tpu/v5p`; the sizes of models are in its `src/maxtext/configs/models`.
"""

from dataclasses import replace

from tests.published_tpu.transformer import BF16, Model, workload_of
from xlapipe import Workload

QKV = ("query_proj", "key_proj", "value_proj")


def _options(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, _, value in (word.partition("=") for word in text.split()))


# As in the recipes' flags for offloading to the host, and for data parallelism.
V6E = """
xla_tpu_scoped_vmem_limit_kib=98304
xla_tpu_use_minor_sharding_for_major_trivial_input=true
xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1
xla_tpu_assign_all_reduce_scatter_layout=true
xla_tpu_enable_data_parallel_all_reduce_opt=true
xla_tpu_data_parallel_opt_different_sized_ops=true
xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000
"""
OFFLOADS = """
xla_tpu_enable_all_experimental_scheduler_features=true
xla_tpu_enable_scheduler_memory_pressure_tracking=true
xla_tpu_host_transfer_overlap_limit=24
xla_tpu_aggressive_opt_barrier_removal=ENABLED
xla_lhs_prioritize_async_depth_over_stall=ENABLED
xla_tpu_enable_ag_backward_pipelining=true
xla_should_allow_loop_variant_parameter_in_chain=ENABLED
xla_should_add_loop_invariant_op_in_chain=ENABLED
xla_max_concurrent_host_send_recv=100
xla_tpu_scheduler_percent_shared_memory_limit=100
xla_latency_hiding_scheduler_rerun=2
"""
TPU7X = """
xla_tpu_scoped_vmem_limit_kib=61440
xla_tpu_bf16_emission_mode=NATIVE_EMISSION
xla_tpu_enable_sparse_core_collective_offload_all_reduce=true
xla_tpu_use_single_sparse_core_for_all_gather_offload=true
"""
V5P = """
xla_tpu_megacore_fusion_allow_ags=false
xla_enable_async_collective_permute=true
xla_tpu_enable_ag_backward_pipelining=true
xla_tpu_enable_data_parallel_all_reduce_opt=true
xla_tpu_data_parallel_opt_different_sized_ops=true
xla_tpu_overlap_compute_collective_tc=true
xla_enable_async_all_gather=true
xla_tpu_scoped_vmem_limit_kib=81920
"""
VMEM, VMEM7 = _options(V6E + OFFLOADS), _options(TPU7X)
LLAMA8 = Model(
    layers=32, width=4096, heads=32, kv_heads=8, head=128, inner=14336, vocabulary=128256,
    batch=3, length=8192, devices=8, options=VMEM,
    offloaded=("decoder_layer_input", "out_proj", *QKV),
)  # fmt: skip
LLAMA70 = replace(LLAMA8, layers=80, width=8192, heads=64, inner=28672)
LLAMA405 = replace(LLAMA8, layers=126, width=16384, heads=128, inner=53248)
STEPS = {
    "llama3.1-8b-v6e-8": LLAMA8,
    "mistral-7b-v6e-8": replace(LLAMA8, vocabulary=32000, batch=6),
    "llama3.1-70b-v6e-64": replace(
        LLAMA70, batch=2, devices=64, offloaded=("decoder_layer_input", *QKV)
    ),
    "llama2-70b-v6e-256": replace(
        # The recipe says 3 rows; its log, 2,097,152 weights of tokens, and tokens per second, 2.
        LLAMA70, batch=2, devices=256, length=4096, vocabulary=32000, offloaded=QKV, block=1024,
    ),
    "gpt3-175b-v6e-256": replace(
        LLAMA8, layers=96, width=12288, heads=96, kv_heads=96, inner=49152, vocabulary=50304,
        gated=False, length=2048, batch=3, devices=256, offloaded=(), block=1024,
    ),
    "llama3.1-70b-tpu7x-64": replace(
        LLAMA70, batch=2, devices=128, offloaded=(), moment=BF16, options=VMEM7,
        saved=("decoder_layer_input", "context", *QKV),
    ),
    "llama3.1-70b-fp8-tpu7x-64": replace(
        LLAMA70, batch=2, devices=128, offloaded=(), moment=BF16, options=VMEM7, float8=True,
        saved=("decoder_layer_input", "context", *QKV),
    ),
    "llama3.1-70b-128k-tpu7x-256": replace(
        LLAMA70, batch=1, length=131072, devices=512, context=8, offloaded=(), chunks=4,
        saved=("decoder_layer_input", "context", "mlpwo", *QKV), options=VMEM7,
    ),
    "llama3.1-405b-tpu7x-256": replace(
        LLAMA405, batch=3, devices=512, moment=BF16, chunks=4, options=VMEM7,
        offloaded=("decoder_layer_input", "mlpwo"), saved=("key_proj", "value_proj"),
    ),
    "qwen3-235b-tpu7x-256": replace(
        LLAMA8, layers=94, heads=64, kv_heads=4, inner=1536, vocabulary=151936, experts=128,
        chosen=8, batch=16, length=4096, devices=512, block=1024,
        options=VMEM7,
        offloaded=("decoder_layer_input",),
    ),
    "gpt-oss-120b-tpu7x-64": replace(
        LLAMA8, layers=36, width=2880, heads=64, head=64, inner=2880, vocabulary=201088,
        experts=128, chosen=4, windows=(128, 0), batch=10, devices=128, data=2, block=1024,
        options=VMEM7,
        offloaded=("decoder_layer_input", "mlpwo"),
    ),
    "mixtral-8x7b-v6e-256": replace(
        LLAMA8, vocabulary=32000, experts=8, chosen=2, capacity=1.25, batch=12, length=4096,
        devices=256,
    ),
    "mixtral-8x7b-v5p-128": replace(
        LLAMA8, vocabulary=32000, experts=8, chosen=2, batch=36, length=4096, devices=128,
        offloaded=(), weight=BF16, moment=BF16, block=512, options=_options(V5P),
    ),
    "llama2-70b-v5p-256": replace(
        LLAMA70, vocabulary=32000, batch=4, length=4096, devices=256, offloaded=(),
        saved=(*QKV, "out_proj", "mlpwo"), block=512, options=_options(V5P),
    ),
}  # fmt: skip


def published(name: str) -> Workload:
    """A step by its name."""
    return workload_of(name, STEPS[name])
