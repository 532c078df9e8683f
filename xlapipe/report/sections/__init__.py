"""The data of each section of `xlapipe report`; see `xlapipe.report` for how to add one."""
