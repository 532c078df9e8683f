"""Texts of a small TPU plan, written by hand from the grammar: no file of libtpu is kept here.

The step writes a row into a cache that is donated, and multiplies the cache with a weight, which is
moved to VMEM first. The cache is moved to VMEM, too, and back into its own allocation.
"""

from pathlib import Path

CACHE = "bf16[64,1024]{1,0:T(8,128)(2,1)}"
CACHE_IN_VMEM = "bf16[64,1024]{1,0:T(8,128)(2,1)S(1)}"
WEIGHT = "bf16[1024,130]{0,1:T(8,128)(2,1)}"
WEIGHT_IN_VMEM = "bf16[1024,130]{0,1:T(8,128)(2,1)S(1)}"
ROW = "bf16[1,1024]{1,0:T(2,128)(2,1)}"
OUT = "bf16[64,130]{1,0:T(8,128)(2,1)}"
FLAG = "u32[]{:S(2)}"
DOT = 'metadata={op_name="jit(step)/dot_general"}'

HLO = f"""HloModule jit_step, input_output_alias={{ {{0}}: (0, {{}}, may-alias) }}

%product (p0: bf16[64,1024], p1: bf16[1024,130]) -> bf16[64,130] {{
  %p0 = {CACHE_IN_VMEM} parameter(0)
  %p1 = {WEIGHT_IN_VMEM} parameter(1)
  ROOT %convolution.1 = {OUT} convolution(%p0, %p1), dim_labels=bf_io->bf, {DOT}
}}

ENTRY %main (cache: bf16[64,1024], w: bf16[1024,130], row: bf16[1,1024]) -> \
(bf16[64,1024], bf16[64,130]) {{
  %w.1 = {WEIGHT} parameter(1), metadata={{op_name="w"}}
  %cache.1 = {CACHE} parameter(0), metadata={{op_name="cache"}}
  %row.1 = {ROW} parameter(2), metadata={{op_name="row"}}
  %zero = s32[]{{:T(128)}} constant(0)
  %copy-start = ({CACHE_IN_VMEM}, {CACHE}, {FLAG}) copy-start(%cache.1)
  %copy-start.1 = ({WEIGHT_IN_VMEM}, {WEIGHT}, {FLAG}) copy-start(%w.1)
  %copy-done = {CACHE_IN_VMEM} copy-done(%copy-start)
  %update = {CACHE_IN_VMEM} dynamic-update-slice(%copy-done, %row.1, %zero, %zero)
  %copy-start.2 = ({CACHE}, {CACHE_IN_VMEM}, {FLAG}) copy-start(%update)
  %copy-done.1 = {WEIGHT_IN_VMEM} copy-done(%copy-start.1)
  %fusion = {OUT} fusion(%update, %copy-done.1), kind=kOutput, calls=%product, {DOT}
  %copy-done.2 = {CACHE} copy-done(%copy-start.2)
  ROOT %tuple = ({CACHE}, {OUT}) tuple(%copy-done.2, %fusion)
}}
"""

ASSIGNMENT = f"""BufferAssignment:
allocation 0: size 32, page 0, output shape is |(bf16[64,1024], bf16[64,130])|, maybe-live-out:
 value: <1 tuple{{}} @0> (size=32,offset=0): ({CACHE}, {OUT})
allocation 1: size 278528, page 0, parameter 1, shape |bf16[1024,130]| at ShapeIndex {{}}:
 value: <2 w.1 @0> (size=278528,offset=0): {WEIGHT}
allocation 2: size 131072, page 0, parameter 0, shape |bf16[64,1024]| at ShapeIndex {{}}, \
maybe-live-out:
 value: <3 cache.1 @0> (size=131072,offset=0): {CACHE}
 value: <4 copy-start.2{{0}} @0> (size=131072,offset=0): {CACHE}
allocation 3: size 4096, page 0, parameter 2, shape |bf16[1,1024]| at ShapeIndex {{}}:
 value: <5 row.1 @0> (size=4096,offset=0): {ROW}
allocation 4: size 32768, page 0, maybe-live-out:
 value: <6 fusion @0> (size=32768,offset=0): {OUT}
allocation 5: size 512, page 0, constant:
 value: <7 zero @0> (size=512,offset=0): s32[]{{:T(128)}}
allocation 6: size 409600, color 1, page 0, preallocated-temp:
 value: <8 copy-start{{0}} @1> (size=131072,offset=0): {CACHE_IN_VMEM}
 value: <9 update @1> (size=131072,offset=0): {CACHE_IN_VMEM}
 value: <10 copy-start.1{{0}} @1> (size=278528,offset=131072): {WEIGHT_IN_VMEM}
allocation 7: size 4, color 2, page 0, preallocated-temp:
 value: <11 copy-start.1{{2}} @2> (size=4,offset=0): {FLAG}

"""

TOTAL = 32 + 278528 + 131072 + 4096 + 32768 + 512 + 409600 + 4
VALUES = f"""Total bytes used: {TOTAL} (836.5KiB)
"""

LIVE_RANGE = (
    Path(__file__).with_name("texts").joinpath("tpu_live_range.txt").read_text(encoding="utf-8")
)

_STEM = "module_0000.jit_step.cl_1.after_optimizations"


def write_dump(folder: Path, **replacements: str) -> Path:
    """Writes the files as libtpu names them.

    Args:
      replacements: other texts by file: `hlo`, `assignment`, `values` or `live_range`.
    """
    texts = {
        "hlo": (".txt", HLO),
        "assignment": ("-buffer-assignment.txt", ASSIGNMENT),
        "values": ("-buffer-assignment-values.txt", VALUES),
        "live_range": ("-live-range.txt", LIVE_RANGE),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (suffix, text) in texts.items():
        (folder / f"{_STEM}{suffix}").write_text(replacements.get(name, text), encoding="utf-8")
    # Files of other stages, which are not read.
    for stage in ("before_buffer_assignment", "after_buffer_assignment"):
        (folder / f"{_STEM}_{stage}.txt").write_text(HLO, encoding="utf-8")
    return folder
