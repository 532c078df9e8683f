"""What the tests of reports share: pages taken apart, and a dump full of hostile names."""

import hashlib
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from xlapipe.dump.dump import read_file

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>`|*&amp;"


class Page(HTMLParser):
    """A page's elements, its text, and its data by element id."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self._inside: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag
            if tag == "script":
                self.scripts.append((dict(attrs), ""))
            else:
                self.styles.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def data(self, element_id: str) -> Any:
        """JSON of the script element with this id."""
        (found,) = (text for attrs, text in self.scripts if attrs.get("id") == element_id)
        return json.loads(found)

    def policy(self) -> dict[str, str]:
        """The content security policy by directive."""
        (content,) = (
            attrs["content"] or ""
            for tag, attrs in self.tags
            if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
        )
        parts = (part.strip().partition(" ") for part in content.split(";"))
        return {name: value for name, _, value in parts}


def hostile_dump(golden: Path, folder: Path) -> Path:
    """A copy of a golden whose names and HLO are markup."""
    shutil.copytree(golden, folder)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["workload"] = HOSTILE
    manifest["target"] = HOSTILE
    manifest["versions"]["jax"] = HOSTILE
    for leaf in (*manifest["arguments"], *manifest["outputs"]):
        leaf["path"] = f"{leaf['path']}[{HOSTILE!r}]"
    hlo = folder / "before_optimizations.txt"
    text = read_file(folder, hlo.name).decode()
    hlo.with_name(f"{hlo.name}.xz").unlink(missing_ok=True)
    hlo.write_text(f"// {HOSTILE}\n{text}")
    manifest["files"][hlo.name] = hashlib.sha256(hlo.read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    return folder
