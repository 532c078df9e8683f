"""torch Inductor's dumps, read into an InductorPlan. Nothing is executed, torch is not needed.

The steps, in order:

- `graph_files` finds the documents of each graph: a file, a `torch_compile_debug` or trace folder,
  or (with `logs`) the sections of a TORCH_LOGS text; all of them are `text_lines`.
- `ir.text` (with `ir.values`) reads `ir_pre_fusion.txt` and `ir_post_fusion.txt` into `ir.nodes`;
  `ir.graph` answers questions about them; `ir.loop_bodies` gives numbers to the values in loops.
- `wrapper.output_code` parses `output_code.py`; `wrapper.triton_source` reads its Triton kernels;
  `fx_graphs` reads FX graphs, for lines of the program and dtypes.
- `wrapper.replay` follows the wrapper's statements, `wrapper.calls` its calls, and
  `wrapper.evaluation` its expressions. `derive` makes the same events from IR by liveness and
  Inductor's rule for in-place reuse. Both drive `allocations.Replay`, which counts bytes.
- `reader` reads all graphs, and lists which arguments of a backward graph the forward graph gave
  away.
- `assemble` makes the `inductor_plan`, with `gemms_and_collectives` and `findings`; `verify` checks
  it.

`open_path` opens dumps of XLA, and refuses those of torch Inductor.

`wrapper` may import `ir`; `ir` does not import `wrapper`.

An InductorPlan is not a `xlapipe.plans.Plan`, in which every allocation is reserved for the whole
run at a fixed offset: Inductor allocates and frees memory while it runs. It shares Plan's
BufferAllocation, LogicalBuffer, LiveRange, InputOutputAlias, Gemm and SourceLine, and the keys of
its JSON.
"""
