"""Lowers programs of broken.py as the compiling child does; prints a digest of each."""

import sys
from dataclasses import replace
from pathlib import Path

from jax._src import source_info_util

from xlapipe.compile.compile_cache import digest_of
from xlapipe.compile.lowering.load_workload import load_workload
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.registry import WorkloadReference

source_info_util.register_exclusion(__file__)  # as the child does with its own frames
folder = Path(__file__).resolve().parent
config = target_named("h200").config_text
for name in sys.argv[1:]:
    program = lower(load_workload(WorkloadReference(name, f"broken:{name}", folder=folder)), config)
    print(digest_of(program=replace(program, expectations=())))
