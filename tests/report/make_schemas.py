"""Writes `docs/schemas` from real outputs: python tests/report/make_schemas.py

Descriptions, enumerations and types of the existing schemas are kept, since the examples do not
show every null. Within a version of the schemas, keys are only added; a key that is removed or
gets another type needs a new version.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
VERSION = 1


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.report.json_outputs import GOLDENS, outputs, printed
    from tests.report.json_schema import inferred

    examples: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for command, output in outputs(Path(folder)):
            examples.setdefault(command, []).append(output)
    for manifest in sorted(GOLDENS.rglob("manifest.json")):
        for command in ("show", "check"):
            examples[command].append(printed(command, manifest.parent))
    for command, values in examples.items():
        path = SCHEMAS / f"{command}.v{VERSION}.json"
        old = json.loads(path.read_text()) if path.exists() else {}
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"xlapipe/schemas/{path.name}",
            "title": old.get("title", f"xlapipe {command} --json"),
            **merged(inferred(values), old),
        }
        path.write_text(written(schema))


def written(schema: dict[str, Any]) -> str:
    """The text of a schema, in which only what changed moves."""
    return json.dumps(schema, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def merged(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """`new` with the descriptions, enumerations and types of `old`."""
    kept = {key: old[key] for key in ("description", "enum") if key in old}
    result = {**kept, **new}
    types = sorted({*_types(new), *_types(old)})
    if types == ["null"]:  # of which type it is otherwise is unknown
        result.pop("type", None)
    elif types:
        result["type"] = types[0] if len(types) == 1 else types
    if "required" in new and "required" in old:
        result["required"] = [key for key in new["required"] if key in old["required"]]
    for name, schema in new.get("properties", {}).items():
        result["properties"][name] = merged(schema, old.get("properties", {}).get(name, {}))
    for key in ("items", "additionalProperties"):
        if key in new:
            result[key] = merged(new[key], old.get(key, {}))
    if not new.keys() & {"items", "properties", "additionalProperties"}:  # no example has one
        result = {**old, **result}
    return result


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


if __name__ == "__main__":
    main()
