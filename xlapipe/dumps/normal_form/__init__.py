"""Normal forms of a dump, which goldens compare.

- `hlo` (with `plain_config`) removes from HLO text what differs between machines.
- `canonical_hlo` (with `output_order`) and `canonical_plan` then remove what two compiles of one
  program on two machines may choose differently.
- `plan` writes the normal form of a whole plan.
"""
