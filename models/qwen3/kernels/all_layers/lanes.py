"""Operations of one thread, on MLIR values, for inline Mosaic GPU code.

Pallas has no operations for mma fragments, shuffles, polling or named barriers of single warps;
these are PTX. `i32` values are unsigned where PTX makes a difference, except in comparisons.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jax.experimental.mosaic.gpu import utils as mosaic
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith as _arith
from jaxlib.mlir.dialects import gpu, llvm
from jaxlib.mlir.dialects import scf as _scf_dialect

from models.qwen3.kernels.all_layers.sizes import THREADS

Value: TypeAlias = Any
# Their type stubs are those of generated code, without what the dialects' modules add.
arith: Any = _arith
_scf: Any = _scf_dialect
# A wait gives up after this many turns, some seconds, and the launch ends with an error.
TURNS = 1 << 21
WARP_SIZE = 32
# The named barrier of the computing warps.
_BARRIER = 10
ALL_LANES = "0xffffffff"


class Lanes:
    """Arithmetic, shuffles, memory and bounded waits of one thread.

    Attributes:
      warp: number of the thread's warp in its block.
      lane: number of the thread in its warp.
      block: number of the block.
    """

    def __init__(self) -> None:
        self.i32 = ir.IntegerType.get_signless(32)
        self.i64 = ir.IntegerType.get_signless(64)
        self.f32 = ir.F32Type.get()
        self.thread = arith.index_cast(self.i32, gpu.thread_id(gpu.Dimension.x))
        self.warp = mosaic.warp_idx()
        self.lane = self.bits(self.thread, WARP_SIZE - 1)
        self.block = arith.index_cast(self.i32, gpu.block_id(gpu.Dimension.x))

    # Integers. Operands may be Python integers.

    def integer(self, value: Value) -> Value:
        return arith.constant(self.i32, value) if isinstance(value, int) else value

    def plus(self, first: Value, *rest: Value) -> Value:
        total = self.integer(first)
        for value in rest:
            total = arith.addi(total, self.integer(value))
        return total

    def minus(self, a: Value, b: Value) -> Value:
        return arith.subi(self.integer(a), self.integer(b))

    def times(self, a: Value, b: Value) -> Value:
        return arith.muli(self.integer(a), self.integer(b))

    def quotient(self, a: Value, divisor: int) -> tuple[Value, Value]:
        """Quotient and remainder, of values that are not negative."""
        by = self.integer(divisor)
        return arith.divui(a, by), arith.remui(a, by)

    def right(self, a: Value, places: int) -> Value:
        """a shifted right."""
        return arith.shrui(self.integer(a), self.integer(places)) if places else self.integer(a)

    def left(self, a: Value, places: int) -> Value:
        return arith.shli(self.integer(a), self.integer(places))

    def bits(self, a: Value, mask: int) -> Value:
        return arith.andi(self.integer(a), self.integer(mask))

    def least(self, a: Value, b: Value) -> Value:
        """The smaller one, signed."""
        return arith.minsi(self.integer(a), self.integer(b))

    def most(self, a: Value, b: Value) -> Value:
        return arith.maxsi(self.integer(a), self.integer(b))

    def equal(self, a: Value, b: Value) -> Value:
        return arith.cmpi(arith.CmpIPredicate.eq, self.integer(a), self.integer(b))

    def less(self, a: Value, b: Value) -> Value:
        return arith.cmpi(arith.CmpIPredicate.slt, self.integer(a), self.integer(b))

    def both(self, a: Value, b: Value) -> Value:
        return arith.andi(a, b)

    def either(self, a: Value, b: Value) -> Value:
        return arith.ori(a, b)

    def flip(self, a: Value, b: Value) -> Value:
        """Exclusive or."""
        return arith.xori(self.integer(a), self.integer(b))

    def pick(self, condition: Value, a: Value, b: Value) -> Value:
        return arith.select(condition, self.integer(a), self.integer(b))

    # Addresses: 64 bits in global memory, 32 in shared memory.

    def global_address(self, ref: Value) -> Value:
        return llvm.ptrtoint(self.i64, mosaic.memref_ptr(ref))

    def shared_address(self, ref: Value) -> Value:
        return llvm.ptrtoint(self.i32, mosaic.memref_ptr(ref))

    def at(self, address: Value, offset: Value) -> Value:
        """A global address plus an offset of 32 bits, which is not negative."""
        return arith.addi(address, arith.extui(self.i64, self.integer(offset)))

    def at_row(self, address: Value, row: Value, row_bytes: int) -> Value:
        """A global address plus a product that may exceed 32 bits."""
        return arith.addi(
            address, arith.muli(arith.extui(self.i64, row), arith.constant(self.i64, row_bytes))
        )

    # Floats.

    def real(self, value: float) -> Value:
        return arith.constant(self.f32, value)

    def add(self, a: Value, b: Value) -> Value:
        return arith.addf(a, b, fastmath=arith.FastMathFlags.contract)

    def sub(self, a: Value, b: Value) -> Value:
        return arith.subf(a, b, fastmath=arith.FastMathFlags.contract)

    def mul(self, a: Value, b: Value) -> Value:
        return arith.mulf(a, b, fastmath=arith.FastMathFlags.contract)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.pure("fma.rn.f32 $0, $1, $2, $3;", self.f32, a, b, c)

    def maximum(self, a: Value, b: Value) -> Value:
        return self.pure("max.f32 $0, $1, $2;", self.f32, a, b)

    def unary(self, operation: str, a: Value) -> Value:
        """E.g. `ex2.approx.ftz`."""
        return self.pure(f"{operation}.f32 $0, $1;", self.f32, a)

    def exp2(self, a: Value) -> Value:
        return self.unary("ex2.approx.ftz", a)

    def log2(self, a: Value) -> Value:
        return self.unary("lg2.approx", a)

    def cos(self, a: Value) -> Value:
        return self.unary("cos.approx", a)

    def sin(self, a: Value) -> Value:
        return self.unary("sin.approx", a)

    def inverse(self, a: Value) -> Value:
        return self.unary("rcp.approx", a)

    def inverse_root(self, a: Value) -> Value:
        return self.unary("rsqrt.approx", a)

    def inverse_rms(self, squares: Value, count: int, eps: float) -> Value:
        """The reciprocal root mean square of `count` elements with this sum of squares."""
        return self.inverse_root(self.fma(squares, self.real(1 / count), self.real(eps)))

    def float_of(self, a: Value) -> Value:
        """An integer's value."""
        return arith.uitofp(self.f32, a)

    def as_float(self, word: Value) -> Value:
        """A word's bits."""
        return arith.bitcast(self.f32, word)

    def as_word(self, a: Value) -> Value:
        return arith.bitcast(self.i32, a)

    def dot(self, a: Sequence[Value], b: Sequence[Value]) -> Value:
        total = self.mul(a[0], b[0])
        for x, y in zip(a[1:], b[1:], strict=True):
            total = self.fma(x, y, total)
        return total

    def tree(
        self, values: Sequence[Value], operation: Callable[[Value, Value], Value] | None = None
    ) -> Value:
        """The sum of values, or what `operation` makes of them, as a tree."""
        operation = operation or self.add
        rest = list(values)
        while len(rest) > 1:
            odd = [rest.pop()] if len(rest) % 2 else []
            rest = [operation(a, b) for a, b in zip(rest[::2], rest[1::2], strict=True)] + odd
        return rest[0]

    # Words of two bfloat16.

    def bf16_pair(self, low: Value, high: Value) -> Value:
        return self.pure("cvt.rn.bf16x2.f32 $0, $1, $2;", self.i32, high, low)

    def halves(self, words: Sequence[Value]) -> list[Value]:
        """The bfloat16 elements of words, as float32."""
        elements = []
        for word in words:
            elements += [self.as_float(self.left(word, 16)), self.as_float(self.bits(word, -65536))]
        return elements

    def bytes_of(self, a: Value, b: Value, selection: str) -> Value:
        """Bytes of two words, by `prmt`: digits from the right; 0 to 3 of a, 4 to 7 of b."""
        return self.pure(f"prmt.b32 $0, $1, $2, 0x{selection};", self.i32, a, b)

    # Exchange within a warp.

    def across(self, value: Value, distance: int) -> Value:
        """The value of the lane whose number differs by the bit `distance`."""
        text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, {ALL_LANES};"
        return mosaic.inline_ptx(text, value, result_types=value.type, has_side_effects=True)

    def of_lane(self, value: Value, lane: Value) -> Value:
        text = f"shfl.sync.idx.b32 $0, $1, $2, 31, {ALL_LANES};"
        operands = (value, self.integer(lane))
        return mosaic.inline_ptx(text, *operands, result_types=value.type, has_side_effects=True)

    def sums_across(self, values: Sequence[Value], distances: Sequence[int]) -> list[Value]:
        """Sums over lanes. All values take a step together: the steps' latencies overlap."""
        totals = list(values)
        for distance in distances:
            others = [self.across(value, distance) for value in totals]
            totals = [self.add(a, b) for a, b in zip(totals, others, strict=True)]
        return totals

    def synchronize_warp(self) -> None:
        self.ptx(f"bar.warp.sync {ALL_LANES};")

    # PTX.

    def ptx(self, text: str, *operands: Value, only: Value = None) -> None:
        """A statement; with `only`, of the threads for which it is true."""
        mosaic.inline_ptx(text, *operands, predicate=only, has_side_effects=True)

    def pure(self, text: str, result_type: Value, *operands: Value) -> Value:
        return mosaic.inline_ptx(text, *operands, result_types=result_type, has_side_effects=False)

    def opaque(self, a: Value) -> Value:
        """The same value, of which the compiler knows nothing."""
        text = "mov.b32 $0, $1;"
        return mosaic.inline_ptx(text, a, result_types=a.type, has_side_effects=True)

    def words(
        self, count: int, text: str, operands: Sequence[Value], constraints: str
    ) -> list[Value]:
        """The `count` words that a statement returns."""
        result = llvm.inline_asm(
            llvm.StructType.get_literal([self.i32] * count),
            list(operands),
            text,
            constraints,
            has_side_effects=True,
        )
        return [llvm.extractvalue(self.i32, result, [number]) for number in range(count)]

    # Memory.

    def load_words(self, space: str, address: Value, count: int, offset: int = 0) -> list[Value]:
        """1, 2 or 4 words. `space` is `shared`, or `global.nc` for what no thread writes."""
        kind = "r" if space == "shared" else "l"
        places = ",".join(f"${number}" for number in range(count))
        vector = f".v{count}" if count > 1 else ""
        places = f"{{{places}}}" if count > 1 else places
        text = f"ld.{space}{vector}.b32 {places}, [${count}+{offset}];"
        if count == 1:
            return [mosaic.inline_ptx(text, address, result_types=self.i32, has_side_effects=True)]
        return self.words(count, text, [address], ",".join(["=r"] * count + [kind]))

    def load_shared(self, address: Value, offset: int = 0) -> Value:
        """A float32."""
        return self.as_float(self.load_words("shared", address, 1, offset)[0])

    def copy_to_shared(
        self, target: Value, source: Value, size: Value, full: Value, policy: Value
    ) -> None:
        """Starts a bulk copy of `size` bytes from global memory, which the mbarrier `full` counts.

        Args:
          policy: of L2.
        """
        text = "mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], {size}, [$2], $3;"
        text = f"cp.async.bulk.shared::cluster.global.{text}"
        self.with_size(text, size, target, source, full, policy)

    def with_size(self, text: str, size: Value, *operands: Value) -> None:
        """A statement with a size, which is part of the text if it is a Python integer."""
        if isinstance(size, int):
            self.ptx(text.format(size=size), *operands)
        else:
            self.ptx(text.format(size=f"${len(operands)}"), *operands, size)

    def load_address(self, address: Value) -> Value:
        """64 bits of shared memory."""
        text = "ld.shared.b64 $0, [$1];"
        return mosaic.inline_ptx(text, address, result_types=self.i64, has_side_effects=True)

    def store_shared(self, address: Value, *values: Value, only: Value = None) -> None:
        """1, 2 or 4 float32."""
        count = len(values)
        vector = f".v{count}" if count > 1 else ""
        places = ",".join(f"${number + 1}" for number in range(count))
        self.ptx(f"st.shared{vector}.f32 [$0], {{{places}}};", address, *values, only=only)

    # Control flow.

    def when(self, condition: Value) -> Any:
        """A context whose statements run if the condition holds."""
        return mosaic.when(condition)

    def choose(
        self,
        condition: Value,
        types: Sequence[Value],
        then: Callable[[], Sequence[Value] | None],
        otherwise: Callable[[], Sequence[Value] | None],
    ) -> list[Value]:
        """The values of one of two branches, if any."""
        branch: Any = _scf.IfOp(condition, list(types), has_else=True)
        for block, values in ((branch.then_block, then), (branch.else_block, otherwise)):
            with ir.InsertionPoint(block):
                _scf.YieldOp(list(values() or ()))
        return list(branch.results)

    def loop(
        self,
        count: Value,
        state: Sequence[Value],
        body: Callable[..., Sequence[Value]],
    ) -> list[Value]:
        """The state after `state = body(number, *state)` for each number below `count`."""
        loop: Any = _scf.ForOp(
            self.integer(0), self.integer(count), self.integer(1), [self.integer(x) for x in state]
        )
        with ir.InsertionPoint(loop.body):
            _scf.YieldOp(list(body(loop.induction_variable, *loop.inner_iter_args)))
        return list(loop.results)

    # Waits.

    def wait(self, barrier: Value, parity: Value, *, one_thread: bool = False) -> None:
        """Waits for a phase of an mbarrier; of all lanes of the warp, or of one thread.

        All lanes leave the loop together, by a vote. After a loop that they leave one by one, the
        compiler cannot tell that they run together again: it adds a second version of what
        follows, in which each shuffle is a synchronisation, and which takes several times as long.
        """
        vote = "" if one_thread else f"vote.sync.all.pred p, p, {ALL_LANES}; "
        self.ptx(
            "{ .reg .pred p, q; .reg .b32 n; mov.b32 n, 0; "
            f"WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; {vote}@p bra DONE; "
            f"add.u32 n, n, 1; setp.gt.u32 q, n, {TURNS}; @q trap; bra WAIT; DONE: }}",
            barrier,
            parity,
        )

    def synchronize(self) -> None:
        """Waits for all computing warps."""
        self.named_barrier(_BARRIER, THREADS)

    def named_barrier(self, number: int, threads: int, *, arrive: bool = False) -> None:
        """Waits for `threads` threads, or only counts this one."""
        self.ptx(f"barrier.{'arrive' if arrive else 'sync'} {number}, {threads};")
