"""Prints XProf's tools for a run folder, and its memory viewer's figures, as JSON.

python xprof_peak.py RUN_FOLDER
"""

import json
import sys
from pathlib import Path

from xprof.convert import _pywrap_profiler_plugin as profiler
from xprof.convert import raw_to_tool_data

run = Path(sys.argv[1])
(trace,) = map(str, run.glob("*.xplane.pb"))
(module,) = (path.name.removesuffix(".hlo_proto.pb") for path in run.glob("*.hlo_proto.pb"))
data, good = profiler.xspace_to_tools_data(
    [trace], "memory_viewer", {"module_name": module, "memory_space": "0"}
)
if not good:
    sys.exit(f"xprof did not convert: {data[:300]!r}")
tools = raw_to_tool_data.xspace_to_tool_names([trace])
print(json.dumps({"tools": tools, **json.loads(data)}))
