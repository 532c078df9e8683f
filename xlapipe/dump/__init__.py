"""Dump directories: what a compile leaves on disk, and how it is read and compared.

`dump` writes and opens a Dump, whose `manifest` states what was compiled and the digest of each
file; `opened` reads a path into a plan. `readers` parse XLA's protos and texts into a Plan, and
`normal_form` writes the forms that goldens compare. `autotune_lock`, `time_record` and
`run_record` are the files with measurements of a device.
"""
