"""Runs XProf's conversion of an HloProto for its memory viewer, as a process to be timed.

python xprof_viewer.py SESSION_FOLDER
"""

import sys

from xprof.convert import _pywrap_profiler_plugin as profiler

data, good = profiler.xspace_to_tools_data(
    [f"{sys.argv[1]}/host.xplane.pb"], "memory_viewer", {"module_name": "step", "memory_space": "0"}
)
if not good or len(data) < 1000:
    sys.exit(f"xprof did not convert: {data[:300]!r}")
