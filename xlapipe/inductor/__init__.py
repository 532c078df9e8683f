"""torch Inductor's dumps, read into an InductorPlan. Nothing is executed, torch is not needed.

What flows, in one direction:

- `graph_files` finds the documents of each graph: a file, a `torch_compile_debug` or trace folder,
  or (with `logs`) the sections of a TORCH_LOGS text; all of them are `text_lines`.
- `ir_text` (with `ir_values`) reads `ir_pre_fusion.txt` and `ir_post_fusion.txt` into `ir_nodes`;
  `ir_graph` answers questions about them; `loop_bodies` gives numbers to the values in loops.
- `wrapper_code` parses `output_code.py` with `ast`; `kernel_code` reads its Triton sources;
  `fx_graphs` reads FX graphs, for lines of the program and dtypes.
- `wrapper_replay` follows the wrapper's statements: `wrapper_arguments`, `wrapper_allocations`,
  `wrapper_operators`, `wrapper_methods` and `wrapper_evaluation` (with `wrapper_layouts`,
  `wrapper_dtypes`, `wrapper_launches`, `wrapper_syntax`, `operators`) change its `wrapper_state`.
  `derive` makes the same events from IR by liveness and Inductor's rule for in-place reuse. Both
  drive `allocations.Replay`, which counts bytes.
- `linking` says which arguments of a backward graph the forward graph gave away.
- `assemble` makes the `inductor_plan`, with `gemms_and_collectives`, `findings_ir`,
  `findings_wrapper` and `ir_facts`; `measured` adds what was measured; `verify` checks it.

An InductorPlan is not a `xlapipe.plan.Plan`, which says that every allocation is reserved for the
whole run at a fixed offset: Inductor takes and frees memory while it runs. It shares Plan's
BufferAllocation, LogicalBuffer, LiveRange, InputOutputAlias, Gemm and SourceLine, and the keys of
its JSON. What only Inductor has is in `InductorPlan.only`.
"""
