"""Search over forms of a step: each candidate is compiled, and the plans are compared.

`sizing` finds which sizes of a workload fit a device (`fit`, `sizes`), from which size on XLA
rematerialises (`cliff`), and which changes lower memory (`remedies`). `choosing` finds the fastest
form that fits (`choose`): it searches which values to keep, compiles candidates, and makes rows and
the code to write. `choosing` imports `sizing`, not the reverse.
"""
