"""How to fix a dump file that cannot be read, for the end of error messages."""

COPY_AGAIN = "copy or dump the file again; it seems to be cut short"
DUMP_AGAIN = "dump the module again; the file is damaged"
DUMP_AGAIN_OR_REPORT = (
    "dump the module again, or report this line with the dump; the file is damaged, or its version "
    "of XLA writes a form that xlapipe does not know"
)
GIVE_PROTO = "give the *_gpu_after_optimizations.hlo.pb that --xla_dump_hlo_as_proto writes"
GIVE_DUMP = "give an .hlo.pb, a *buffer-assignment.txt, or the directory of an XLA dump"
