"""Normal forms of a dump, which goldens compare.

- `module_text` cuts the text of a module into instructions.
- `hlo` removes what differs between machines.
- `canonical` (with `output_order`) then removes what two compiles of one program on two machines
  may choose differently.
- `plan` writes the normal form of a whole plan.
"""
