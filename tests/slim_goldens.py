"""Leaves in hlo_dumps what readers and people read: python -m tests.slim_goldens

`make dump` runs it. What a reader needs is packed; a target's configuration is there once.
"""

import hashlib
import lzma
import shutil
from pathlib import Path

from tests.conftest import RESNETS, ROOT
from xlapipe.devices.platforms import PLATFORMS
from xlapipe.dump.dump import PLAN, SHARED_CONFIGS, TARGET_CONFIG

# Above these sizes, files of XLA and plans are packed.
PACK_ABOVE = {file.name: 16 << 10 for it in PLATFORMS for file in it.dump_files if file.name}
PACK_ABOVE[PLAN] = 256 << 10
# Not kept if it is larger packed: the optimised module's proto and its normal form are there.
TEXT, MOST_TEXT = "after_optimizations.txt", 24 << 10


def slim(folder: Path) -> None:
    """Packs, shares and removes files of one golden."""
    if folder.parent.name in RESNETS and "-triton-" in folder.name:
        shutil.rmtree(folder)
        return
    config = folder / TARGET_CONFIG
    if config.exists():
        content = config.read_bytes()
        shared = SHARED_CONFIGS / hashlib.sha256(content).hexdigest()
        shared.mkdir(parents=True, exist_ok=True)
        (shared / TARGET_CONFIG).write_bytes(content)
        config.unlink()
    for name, limit_bytes in PACK_ABOVE.items():
        file = folder / name
        if file.exists() and file.stat().st_size > limit_bytes:
            packed = lzma.compress(file.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
            file.with_name(f"{name}.xz").write_bytes(packed)
            file.unlink()
    for text in folder.glob(f"{TEXT}.?z"):
        if text.stat().st_size > MOST_TEXT:
            text.unlink()


if __name__ == "__main__":
    for golden in sorted((ROOT / "hlo_dumps").glob("*/*-jax*")):
        slim(golden)
