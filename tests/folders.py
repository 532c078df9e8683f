"""Folders that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Small dumps, profiles and logs.
DATA = ROOT / "tests/data"

# Modules of workloads, which tests name as users do, from within this folder.
STEPS = ROOT / "tests/steps"
