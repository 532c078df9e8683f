"""Adds README, CONTRIBUTING and CHANGELOG of the repository's root to the site.

Their links are relative to the root: those into docs/ become links between pages, those to other
files of the repository become plain text.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with the files of docs/."""
    root = Path(config.config_file_path).parent
    for name, page in _PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_LINK.sub(_for_site, text)))
    return files


def _for_site(link: re.Match[str]) -> str:
    text, target = link[1], link[2]
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or not path:
        return link[0]
    if path in _PAGES:
        return f"[{text}]({_PAGES[path]}{hash_sign}{anchor})"
    if path.startswith("docs/"):
        return f"[{text}]({path.removeprefix('docs/')}{hash_sign}{anchor})"
    return text
