"""From a workload to a Dump: jobs, the compiling child process, and capture of XLA's files.

`make_jobs` turns options into Jobs (`job`), and `pipeline` takes each to a dump on disk, in threads
or on a Dask cluster (`workers`). `child_process` starts a child, through `fork_server` if possible;
`child` lowers and compiles there, and `capture` turns XLA's files into a Dump. `compile_cache`
keeps results, and `doctor` reports what is missing to compile and to run. `lowering` traces and
lowers with jax, in the child or in a test's process; `xla_patches` holds the changes that are made
to XLA in the child's memory.
"""
