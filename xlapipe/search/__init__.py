"""Search over forms of a step: each candidate is compiled, and the plans are compared.

`rows` is the one loop: a `candidate` is compiled, and its plan (`planned_memory`) is a row.
`sizing` finds which sizes of a workload fit a device. `choosing` finds the fastest form that fits
(`choose`), what a step saves (`saved`), and changes that lower memory (`remedies`): it searches
which values to keep, and makes the code to write. `choosing` imports `sizing`, not the reverse.
"""
