"""Small dumps written by hand in the grammars that torch's versions print, with known bytes.

Lines are as long as torch prints them.
"""
# ruff: noqa: E501

# y = (x * 2) @ w; z = relu(y) in place. x, w: [4, 8] and [8, 16], float32.
# buf0 [4, 8] 128 B; buf1 [4, 16] 256 B, and buf2 in its place. Peak 384 B; output 256 B.
IR_2_6 = """\
op0: SchedulerNode(ComputedBuffer)
op0.writes = [MemoryDep('buf0', c0, {c0: 32})]
op0.unmet_dependencies = []
op0.met_dependencies = [MemoryDep('arg0_1', c0, {c0: 32})]
op0.outputs = [
    buf0: ComputedBuffer
    buf0.layout = FixedLayout('cuda:0', torch.float32, size=[4, 8], stride=[8, 1])
    buf0.users = [NodeUser(node=ExternKernelSchedulerNode(name='op1'), can_inplace=False, is_weak=False)]
]
op0.group.device = cuda:0
op0.group.iteration = (32, 1)
op0.sizes = ([4, 8], [])
arg0_1_layout = FixedLayout('cuda:0', torch.float32, size=[4, 8], stride=[8, 1])
buf0_layout = FixedLayout('cuda:0', torch.float32, size=[4, 8], stride=[8, 1])
class op0_loop_body:
    var_ranges = {p0: 4, p1: 8}
    index0 = 8*p0 + p1
    def body(self, ops):
        get_index = self.get_index('index0')
        load = ops.load('arg0_1', get_index)
        constant = ops.constant(2.0, torch.float32)
        mul = ops.mul(load, constant)
        get_index_1 = self.get_index('index0')
        store = ops.store('buf0', get_index_1, mul, None)
        return store


op1: ExternKernelSchedulerNode(ExternKernelOut)
op1.writes = [StarDep(name='buf1', mode=None)]
op1.unmet_dependencies = [StarDep(name='buf0', mode=None)]
op1.met_dependencies = [StarDep(name='arg1_1', mode=None)]
op1.outputs = [
    buf1: ExternKernelOut
    buf1.layout = FixedLayout('cuda:0', torch.float32, size=[4, 16], stride=[16, 1])
    buf1.users = [NodeUser(node=SchedulerNode(name='op2'), can_inplace=True, is_weak=False)]
]
op1.node.kernel = extern_kernels.mm


op2: SchedulerNode(ComputedBuffer)
op2.writes = [MemoryDep('buf2', c0, {c0: 64})]
op2.unmet_dependencies = [MemoryDep('buf1', c0, {c0: 64})]
op2.met_dependencies = []
op2.outputs = [
    buf2: ComputedBuffer
    buf2.layout = FixedLayout('cuda:0', torch.float32, size=[4, 16], stride=[16, 1])
    buf2.users = [NodeUser(node=OUTPUT, can_inplace=False, is_weak=False)]
]
op2.group.device = cuda:0
op2.group.iteration = (64, 1)
op2.sizes = ([64], [])
buf1_layout = FixedLayout('cuda:0', torch.float32, size=[4, 16], stride=[16, 1])
buf2_layout = FixedLayout('cuda:0', torch.float32, size=[4, 16], stride=[16, 1])
class op2_loop_body:
    var_ranges = {p0: 64}
    index0 = p0
    def body(self, ops):
        get_index = self.get_index('index0')
        load = ops.load('buf1', get_index)
        relu = ops.relu(load)
        get_index_1 = self.get_index('index0')
        store = ops.store('buf2', get_index_1, relu, None)
        return store
"""

# The same program. Nodes are named as their buffers, dependencies have four arguments.
IR_2_4 = """\
buf0: SchedulerNode(ComputedBuffer)
buf0.writes = [MemoryDep('buf0', c0, {c0: 32}, None)]
buf0.unmet_dependencies = []
buf0.met_dependencies = [MemoryDep('arg0_1', c0, {c0: 32}, None)]
buf0.users = [NodeUser(node=ExternKernelSchedulerNode(name='buf1'), can_inplace=False, is_weak=False)]
buf0.group.device = cuda:0
buf0.group.iteration = (32, 1)
buf0.sizes = ([32], [])
arg0_1_layout = FixedLayout('cuda', torch.float32, size=[4, 8], stride=[8, 1])
buf0_layout = FixedLayout('cuda', torch.float32, size=[4, 8], stride=[8, 1])
class buf0_loop_body:
    var_ranges = {z0: 32}
    index0 = z0
    def body(self, ops):
        get_index = self.get_index('index0')
        load = ops.load('arg0_1', get_index)
        constant = ops.constant(2.0, torch.float32)
        mul = ops.mul(load, constant)
        get_index_1 = self.get_index('index0')
        store = ops.store('buf0', get_index_1, mul, None)
        return store


buf1: ExternKernelSchedulerNode(ExternKernelOut)
buf1.writes = [StarDep(name='buf1', mode=None)]
buf1.unmet_dependencies = [StarDep(name='buf0', mode=None)]
buf1.met_dependencies = [StarDep(name='arg1_1', mode=None)]
buf1.users = [NodeUser(node=SchedulerNode(name='buf2'), can_inplace=True, is_weak=False)]
buf1.node.kernel = extern_kernels.mm


buf2: SchedulerNode(ComputedBuffer)
buf2.writes = [MemoryDep('buf2', c0, {c0: 64}, None)]
buf2.unmet_dependencies = [MemoryDep('buf1', c0, {c0: 64}, None)]
buf2.met_dependencies = []
buf2.users = [NodeUser(node=OUTPUT, can_inplace=False, is_weak=False)]
buf2.group.device = cuda:0
buf2.group.iteration = (64, 1)
buf2.sizes = ([64], [])
buf1_layout = FixedLayout('cuda', torch.float32, size=[4, 16], stride=[16, 1])
buf2_layout = FixedLayout('cuda', torch.float32, size=[4, 16], stride=[16, 1])
class buf2_loop_body:
    var_ranges = {z0: 64}
    index0 = z0
    def body(self, ops):
        get_index = self.get_index('index0')
        load = ops.load('buf1', get_index)
        relu = ops.relu(load)
        get_index_1 = self.get_index('index0')
        store = ops.store('buf2', get_index_1, relu, None)
        return store
"""


def without_layouts(text: str) -> str:
    """As torch 2.3 prints it: no layouts, a StarDep of one argument, a MemoryDep of three."""
    lines = [line for line in text.splitlines() if "_layout = " not in line]
    return "\n".join(lines).replace("}, None)", "})").replace(", mode=None)", ")")


# A node of the fused kernel below: buf@ = exp(buf0).
_EXP = """\
    op0_op1_op2.snodes[@] =
    op@: SchedulerNode(ComputedBuffer)
    op@.writes = [MemoryDep('buf@', c0, {c0: 32})]
    op@.unmet_dependencies = [MemoryDep('buf0', c0, {c0: 32})]
    op@.met_dependencies = []
    op@.outputs = [
        buf@: ComputedBuffer
        buf@.layout = FixedLayout('cuda:0', torch.float32, size=[4, 8], stride=[8, 1])
        buf@.users = [NodeUser(node=OUTPUT, can_inplace=False, is_weak=False)]
    ]
    op@.group.device = cuda:0
    op@.sizes = ([32], [])
    class op@_loop_body:
        var_ranges = {p0: 32}
        index0 = p0
        def body(self, ops):
            get_index = self.get_index('index0')
            load = ops.load('buf0', get_index)
            exp = ops.exp(load)
            get_index_1 = self.get_index('index0')
            store = ops.store('buf@', get_index_1, exp, None)
            return store
"""

# Two nodes in one kernel: both store x * 2, and op0 is used only there, so that it is never stored.
# op3 copies what no kernel wrote. The outputs are buf1, buf2 (128 B each) and buf4 (64 B).
IR_FUSED = (
    """\
AFTER FUSION
op0_op1_op2: FusedSchedulerNode(SchedulerNode,SchedulerNode,SchedulerNode)
op0_op1_op2.writes =
    [   MemoryDep('buf0', c0, {c0: 32}),
        MemoryDep('buf1', c0, {c0: 32}),
        MemoryDep('buf2', c0, {c0: 32})]
op0_op1_op2.unmet_dependencies = []
op0_op1_op2.met_dependencies = [   MemoryDep('arg0_1', c0, {c0: 32})]
op0_op1_op2.min_input_distance = 0
op0_op1_op2.outputs = [
]
    op0_op1_op2.snodes[0] =
    op0: SchedulerNode(ComputedBuffer)
    op0.writes = [MemoryDep('buf0', c0, {c0: 32})]
    op0.unmet_dependencies = []
    op0.met_dependencies = [MemoryDep('arg0_1', c0, {c0: 32})]
    op0.outputs = [
        buf0: ComputedBuffer
        buf0.layout = FixedLayout('cuda:0', torch.float32, size=[4, 8], stride=[8, 1])
        buf0.users = [
            NodeUser(node=SchedulerNode(name='op1'), can_inplace=True, is_weak=False),
            NodeUser(node=SchedulerNode(name='op2'), can_inplace=True, is_weak=False),
        ]
    ]
    op0.group.device = cuda:0
    op0.sizes = ([32], [])
    class op0_loop_body:
        var_ranges = {p0: 32}
        index0 = p0
        def body(self, ops):
            get_index = self.get_index('index0')
            load = ops.load('arg0_1', get_index)
            add = ops.add(load, load)
            get_index_1 = self.get_index('index0')
            store = ops.store('buf0', get_index_1, add, None)
            return store
"""
    + _EXP.replace("@", "1")
    + _EXP.replace("@", "2")
    + """\


op3: NopKernelSchedulerNode(ComputedBuffer)
op3.writes = [MemoryDep('buf3', d0, {d0: 0})]
op3.unmet_dependencies = []
op3.met_dependencies = []
op3.outputs = [
    buf3: ComputedBuffer
    buf3.layout = FixedLayout('cuda:0', torch.float32, size=[16], stride=[1])
    buf3.users = [NodeUser(node=SchedulerNode(name='op4'), can_inplace=True, is_weak=False)]
]


op4: SchedulerNode(ComputedBuffer)
op4.writes = [MemoryDep('buf4', c0, {c0: 16})]
op4.unmet_dependencies = [MemoryDep('buf3', c0, {c0: 16})]
op4.met_dependencies = []
op4.outputs = [
    buf4: ComputedBuffer
    buf4.layout = FixedLayout('cuda:0', torch.float32, size=[16], stride=[1])
    buf4.users = [NodeUser(node=OUTPUT, can_inplace=False, is_weak=False)]
]
op4.group.device = cuda:0
op4.sizes = ([16], [])
class op4_loop_body:
    var_ranges = {p0: 16}
    index0 = p0
    def body(self, ops):
        get_index = self.get_index('index0')
        load = ops.load('buf3', get_index)
        get_index_1 = self.get_index('index0')
        store = ops.store('buf4', get_index_1, load, None)
        return store
op4 Triton code:
    import triton

    @triton.jit
    def triton_(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        x0 = xindex


op5: ExternKernelSchedulerNode(FallbackKernel)
op5.writes = [StarDep(name='buf5', mode=None)]
op5.unmet_dependencies = [WeakDep(name='buf4', mutating_buf='buf7', is_fake=False)]
op5.met_dependencies = [StarDep(name='arg1_1', mode=None)]
op5.outputs = [
    buf5: FallbackKernel
    buf5.layout = MultiOutputLayout(device=device(type='cuda', index=0))
    buf5.users = [NodeUser(node=ExternKernelSchedulerNode(name='op6'), can_inplace=False, is_weak=False)]
]
op5.node.kernel = torch.ops.aten.sort.default


op6: ExternKernelSchedulerNode(MultiOutput)
op6.writes = [StarDep(name='buf6', mode=None)]
op6.unmet_dependencies = [StarDep(name='buf5', mode=None)]
op6.met_dependencies = []
op6.outputs = [
    buf6: MultiOutput
    buf6.layout = FixedLayout('cuda:0', torch.int64, size=[32], stride=[1])
    buf6.users = []
]
op6.node.kernel = None
"""
)

HEAD = """\
# AOT ID: ['{aot_id}']
from ctypes import c_void_p, c_long, c_int
import torch
from torch import device, empty_strided
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels
from torch._C import _cuda_getCurrentRawStream as get_raw_stream

aten = torch.ops.aten
inductor_ops = torch.ops.inductor
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
alloc_from_pool = torch.ops.inductor._alloc_from_pool
async_compile = AsyncCompile()

"""

RELU = """\
# kernel path: /tmp/k.py
# Topologically Sorted Source Nodes: [y], Original ATen: [aten.relu]
# Source node to ATen node mapping:
#   y => relu
# Graph fragment:
#   %relu : [num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%mm,), kwargs = {})
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', '''
import triton
import triton.language as tl

@triton_heuristics.pointwise(
    size_hints={'x': 64},
    triton_meta={'signature': {'in_out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}},
    inductor_meta={'kernel_name': 'triton_poi_fused_relu_0', 'mutated_arg_names': ['in_out_ptr0'], 'num_reduction': 0},
)
@triton.jit
def triton_poi_fused_relu_0(in_out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 64
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), xmask)
    tmp1 = triton_helpers.maximum(0, tmp0)
    tl.store(in_out_ptr0 + (x0), tmp1, xmask)
''', device_str='cuda')

async_compile.wait(globals())
del async_compile

"""

# relu(x @ w): buf0 [4, 16] float32, 256 B, and buf1 in its place; x and buf1 are saved.
FORWARD = (
    HEAD.format(aot_id="0_forward")
    + RELU
    + """\
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        primals_1, primals_2 = args
        args.clear()
        assert_size_stride(primals_1, (8, 16), (16, 1))
        assert_size_stride(primals_2, (4, 8), (8, 1))
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((4, 16), (16, 1), torch.float32)
            # Topologically Sorted Source Nodes: [mm], Original ATen: [aten.mm]
            extern_kernels.mm(primals_2, primals_1, out=buf0)
            del primals_1
            buf1 = buf0; del buf0  # reuse
            buf2 = empty_strided_cuda((4, 16), (16, 1), torch.float32)
            # Topologically Sorted Source Nodes: [y], Original ATen: [aten.relu]
            stream0 = get_raw_stream(0)
            triton_poi_fused_relu_0.run(buf1, 64, stream=stream0)
            aten.copy_(buf2, buf1)
        return (buf2, primals_2, buf1, )

runner = Runner(partitions=[])
call = runner.call


def get_args():
    from torch._dynamo.testing import rand_strided
    primals_1 = rand_strided((8, 16), (16, 1), device='cuda:0', dtype=torch.float32)
    primals_2 = rand_strided((4, 8), (8, 1), device='cuda:0', dtype=torch.float32)
    return [primals_1, primals_2]


if __name__ == "__main__":
    from torch._inductor.wrapper_benchmark import compiled_module_main
    compiled_module_main('None', lambda times, repeat: None)
"""
)

# dw = xᵀ @ (g * mask) [8, 16], 512 B; buf0 takes the place of the saved relu.
BACKWARD = (
    HEAD.format(aot_id="0_backward")
    + """\
def call(args):
    primals_2, relu, tangents_1 = args
    args.clear()
    assert_size_stride(primals_2, (4, 8), (8, 1))
    assert_size_stride(relu, (4, 16), (16, 1))
    assert_size_stride(tangents_1, (4, 16), (16, 1))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = relu; del relu  # reuse
        # Original ATen: [aten.threshold_backward]
        aten.mul_(buf0, tangents_1)
        del tangents_1
        buf1 = empty_strided_cuda((8, 16), (16, 1), torch.float32)
        # Original ATen: [aten.mm]
        extern_kernels.mm(reinterpret_tensor(primals_2, (8, 4), (1, 8), 0), buf0, out=buf1)
        del buf0
        del primals_2
    return (buf1, None, )


def benchmark_compiled_module(times=10, repeat=10):
    from torch._dynamo.testing import rand_strided
    primals_2 = rand_strided((4, 8), (8, 1), device='cuda:0', dtype=torch.float32)
    relu = rand_strided((4, 16), (16, 1), device='cuda:0', dtype=torch.float32)
    tangents_1 = rand_strided((4, 16), (16, 1), device='cuda:0', dtype=torch.float32)
    return print_performance(lambda: call([primals_2, relu, tangents_1]))


if __name__ == "__main__":
    from torch._inductor.wrapper_benchmark import compiled_module_main
    compiled_module_main('None', benchmark_compiled_module)
"""
)

FX_FORWARD = """\
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[8, 16]", primals_2: "f32[4, 8]"):
        # File: net.py:7 in forward, code: return torch.relu(x @ self.w)
        mm: "f32[4, 16]" = torch.ops.aten.mm.default(primals_2, primals_1);  primals_1 = None
        relu: "f32[4, 16]" = torch.ops.aten.relu.default(mm);  mm = None
        return (relu, primals_2, relu)
"""

# Memory planning: one pool of 512 B holds both buffers; a partition frees its argument inside.
POOL_AND_PARTITION = (
    HEAD.format(aot_id="3_inference")
    + RELU
    + """\
def partition_0(args):
    arg0_1, buf0 = args
    args.clear()
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf2 = empty_strided_cuda((4, 16), (16, 1), torch.float32)
        extern_kernels.mm(arg0_1, buf0, out=buf2)
        del arg0_1
        del buf0
    return (buf2, )

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        assert_size_stride(arg0_1, (4, 16), (16, 1))
        assert_size_stride(arg1_1, (16, 16), (16, 1))
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            pool0 = empty_strided_cuda((512, ), (1, ), torch.uint8)
            buf3 = alloc_from_pool(pool0, 0, torch.float32, (4, 16), (16, 1))
            buf4 = alloc_from_pool(pool0, 256, torch.float32, (4, 16), (16, 1))
            triton_poi_fused_relu_0.run(buf3, 64, stream=stream0)
            triton_poi_fused_relu_0.run(buf4, 64, stream=stream0)
            del buf3, buf4
            del pool0
            buf0 = empty_strided_cuda((16, 16), (16, 1), torch.float32)
            aten.copy_(buf0, arg1_1)
            del arg1_1
            partition0_args = [arg0_1, buf0]
            del arg0_1
            del buf0
            (buf2,) = self.partitions[0](partition0_args)
            del partition0_args
            buf5 = empty_strided_cpu((1024, ), (1, ), torch.float32)
        return (buf2, )
runner = Runner(partitions=[partition_0,])
call = runner.call

def get_args():
    from torch._dynamo.testing import rand_strided
    arg0_1 = rand_strided((4, 16), (16, 1), device='cuda:0', dtype=torch.float32)
    arg1_1 = rand_strided((16, 16), (16, 1), device='cuda:0', dtype=torch.float32)
    return [arg0_1, arg1_1]
""".replace("stream=stream0", "stream=get_raw_stream(0)")
)

# Sizes are symbols, whose example is 8; a fallback of two results; an all-gather over two devices.
DYNAMIC = (
    HEAD.format(aot_id="5_inference")
    + """\
def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    s0 = arg0_1
    assert_size_stride(arg1_1, (s0, 16), (16, 1))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = torch.ops.aten.sort.default(arg1_1)
        del arg1_1
        buf1 = buf0[0]
        assert_size_stride(buf1, (s0, 16), (16, 1))
        buf2 = buf0[1]
        assert_size_stride(buf2, (s0, 16), (16, 1))
        del buf0
        buf3 = empty_strided_cuda((16*s0, ), (1, ), torch.bfloat16)
        aten.copy_(buf3, buf1)
        buf4 = torch.ops._c10d_functional.all_gather_into_tensor.default(buf3, 2, '0')
        buf6 = empty_strided_cuda((s0, 16), (16, 1), torch.float32)
        extern_kernels.mm(buf1, buf1, out=buf6)
        buf5 = torch.ops._c10d_functional.wait_tensor.default(buf4)
        del buf3
        del buf1
    return (buf4, buf6, )


def benchmark_compiled_module(times=10, repeat=10):
    from torch._dynamo.testing import rand_strided
    arg0_1 = 8
    arg1_1 = rand_strided((8, 16), (16, 1), device='cuda:0', dtype=torch.float32)
    return print_performance(lambda: call([arg0_1, arg1_1]))
"""
)


def as_log(*codes: str) -> str:
    """A log of Python's logging, as `TORCH_LOGS=output_code,aot_graphs` with `basicConfig`."""
    parts = ["/site/torch/pgo.py:455: UserWarning: no cache\n  warn_once("]
    parts.append(
        "INFO:torch._functorch.__aot_graphs:TRACED GRAPH\n ===== Forward graph 0 =====\n "
        "<eval_with_key>.1 " + FX_FORWARD
    )
    for code in codes:
        parts.append("DEBUG:torch._inductor.codecache.__output_code:Output code:\n" + code)
        parts.append("INFO:torch._inductor.codecache.__output_code:Output code written to: /t/a.py")
    parts.append("Sync time ms: 0.0\n\n experiment  1_float8\nAll  0.838")
    return "\n".join(parts) + "\n"


def as_torch_log(*codes: str) -> str:
    """A log in which torch puts its prefix before every line."""
    prefix = "V0716 15:02:31.123000 4711 torch/_inductor/graph.py:2104] [0/0] [__output_code] "
    lines = ["W0716 15:02:30.000000 4711 torch/_logging.py:1] nothing to see"]
    for code in codes:
        lines += [prefix + "Output code: ", *(prefix + line for line in code.splitlines()), prefix]
        lines.append(prefix + "Output code written to: /tmp/a.py")
    return "\n".join(lines) + "\n"


# The program of hlo_dumps/spectral-diffusion: two matrix products, exp and mul between them.
SPECTRAL = (
    HEAD.format(aot_id="0_inference")
    + RELU
    + """\
def call(args):
    arg0_1, arg1_1, arg2_1, arg3_1, arg4_1 = args
    args.clear()
    assert_size_stride(arg0_1, (2048, 256), (256, 1))
    assert_size_stride(arg1_1, (2048, ), (1, ))
    assert_size_stride(arg2_1, (128, ), (1, ))
    assert_size_stride(arg3_1, (2048, 128), (128, 1))
    assert_size_stride(arg4_1, (256, ), (1, ))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((2048, 256), (256, 1), torch.bfloat16)
        aten.copy_(buf0, arg0_1)
        del arg0_1
        buf1 = empty_strided_cuda((128, 256), (256, 1), torch.bfloat16)
        extern_kernels.mm(reinterpret_tensor(arg3_1, (128, 2048), (1, 128), 0), buf0, out=buf1)
        buf3 = buf0; del buf0  # reuse
        extern_kernels.mm(arg3_1, buf1, out=buf3)
        del arg3_1
    return (buf1, buf3, )

def get_args():
    from torch._dynamo.testing import rand_strided
    arg0_1 = rand_strided((2048, 256), (256, 1), device='cuda:0', dtype=torch.bfloat16)
    arg1_1 = rand_strided((2048, ), (1, ), device='cuda:0', dtype=torch.bfloat16)
    arg2_1 = rand_strided((128, ), (1, ), device='cuda:0', dtype=torch.bfloat16)
    arg3_1 = rand_strided((2048, 128), (128, 1), device='cuda:0', dtype=torch.bfloat16)
    arg4_1 = rand_strided((256, ), (1, ), device='cuda:0', dtype=torch.bfloat16)
    return [arg0_1, arg1_1, arg2_1, arg3_1, arg4_1]
"""
)
