"""What each HLO opcode does with its operands: the one table that every package reads.

The groups follow XLA's `HloDataflowAnalysis` (which instructions forward the values of their
operands) and `ThunkEmitter` (which instructions launch nothing). An opcode outside these groups
computes its result.
"""

# The result consists of the operand, an element of it, or all operands, in the same memory.
RENAMES = frozenset(
    {"add-dependency", "bitcast", "domain", "get-tuple-element", "opt-barrier", "tuple"}
)
# The result is that of an operation that was started earlier.
WAITS = frozenset(
    {"all-gather-done", "all-reduce-done", "async-done", "async-update"}
    | {"collective-permute-done", "copy-done", "recv-done", "send-done"}
)
FORWARDS = RENAMES | WAITS
# Start an operation that another instruction waits for. XLA prints other asynchronous operations
# as `fusion-start` and the like.
STARTS = frozenset(
    {"all-gather-start", "all-reduce-start", "async-start", "collective-permute-start"}
    | {"copy-start"}
)
# Values that are there before the computation runs, and tokens, which have no bytes.
GIVEN = frozenset({"after-all", "constant", "parameter"})
# Instructions that launch no kernel.
NO_KERNEL = FORWARDS | GIVEN
# Target of the custom call to which `jax.lax.empty` compiles. It launches no kernel either: its
# memory is part of the plan, and nothing writes it.
ALLOCATE_BUFFER = "AllocateBuffer"
# The number of the device, which a launch writes.
DEVICE_NUMBERS = frozenset({"partition-id", "replica-id"})

# Run one computation once.
RUNS_ONCE = frozenset({"async-start", "call"})
# Run other computations, whose instructions are scheduled and have separate values.
RUNS_COMPUTATIONS = RUNS_ONCE | {"conditional", "while"}
# Compute their body, whose root is the result.
HAS_BODY = frozenset({"call", "fusion"})
# Contain the instruction that does the work.
WRAPS = frozenset({"async-start", "fusion"})

# The result has the elements of the operand, in the same order.
RESHAPES = frozenset({"bitcast", "reshape"})
COPIES = frozenset({"copy", "copy-start"})
# The result has elements of the operands, at other places.
REARRANGES = frozenset({"concatenate", "dynamic-slice", "reverse", "slice", "transpose"})
# The result is the first operand, with other elements in some places.
UPDATES = frozenset({"dynamic-update-slice", "scatter"})
# Write elements of the operands to new memory, and compute nothing from them.
MOVES = COPIES | REARRANGES | UPDATES
# The type of the elements changes.
CONVERTS = frozenset({"bitcast-convert", "convert"})
# The operand is in the result several times, or together with other elements.
EXTENDS = frozenset({"broadcast", "pad"})
# The operands are in the result, side by side or between other elements.
JOINS = frozenset({"concatenate", "pad"})
# Another operand states which elements are read or changed.
INDEXED = frozenset({"gather", "scatter"})
# Many elements of the operand become one.
REDUCES = frozenset({"reduce", "reduce-window"})
# All elements follow from the instruction alone, without operands or by copies of one.
FILLS = frozenset({"broadcast", "iota"})

# Every element of the result is computed from one element of each operand.
ELEMENTWISE = frozenset(
    {"abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert"}
    | {"cosine", "count-leading-zeros", "divide", "erf", "exponential", "exponential-minus-one"}
    | {"floor", "imag", "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum"}
    | {"multiply", "negate", "not", "or", "popcnt", "power", "real", "reduce-precision"}
    | {"remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left"}
    | {"shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "subtract", "tan"}
    | {"tanh", "xor"}
)
# Matrix products and convolutions before XLA rewrites them to calls of libraries.
CONTRACTS = frozenset({"convolution", "dot", "ragged-dot", "scaled-dot"})
DOTS = CONTRACTS - {"convolution"}
# An element of the result needs elements of the operands at other indices than its own.
READS_OTHER_INDICES = (REARRANGES | UPDATES | EXTENDS | INDEXED | REDUCES) | {"dot", "sort"}

# XLA's collectives, in their synchronous spelling; some also have a `-start` opcode.
COLLECTIVES = frozenset(
    {"all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute"}
    | {"ragged-all-to-all", "reduce-scatter"}
)
# Exchange a value between two devices, or a device and the host.
POINT_TO_POINT = frozenset({"recv", "send"})
# Opcodes of the instructions that have replica groups or source-target pairs.
WITH_GROUPS = COLLECTIVES | {f"{kind}-start" for kind in COLLECTIVES}
