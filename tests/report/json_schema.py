"""The part of JSON Schema that `docs/schemas` uses: a validator, and inference from examples."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TYPES = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}
# Objects whose keys are data: names of versions, options, axes, stages, leaves.
MAPS = frozenset(
    {
        *("versions", "options", "mesh", "thunks", "spaces", "seconds", "values", "others"),
        *("parts", "arguments"),
    }
)
_FIXED = ".arguments"  # of `diff-inductor`, whose keys are not data


def type_name(value: Any) -> str:
    """JSON Schema's name of the type of a JSON value."""
    for name in ("null", "boolean", "integer", "string", "array", "object"):
        if isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool)):
            return name
    return "number"


def problems(value: Any, schema: Mapping[str, Any], where: str = "$") -> Iterator[str]:
    """Where `value` does not have the form of `schema`."""
    types = schema.get("type")
    if types is None:
        return
    name = type_name(value)
    allowed = [types] if isinstance(types, str) else types
    if name not in allowed and not (name == "integer" and "number" in allowed):
        yield f"{where}: expected {' or '.join(allowed)}, found {name}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: expected one of {schema['enum']}, found {value!r}"
    if name == "array" and "items" in schema:
        for number, item in enumerate(value):
            yield from problems(item, schema["items"], f"{where}[{number}]")
    if name == "object":
        yield from _object_problems(value, schema, where)


def _object_problems(
    value: Mapping[str, Any], schema: Mapping[str, Any], where: str
) -> Iterator[str]:
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{where}: lacks {key!r}"
    properties = schema.get("properties", {})
    for key, item in value.items():
        inner = properties.get(key, schema.get("additionalProperties"))
        if inner is not None:  # a newer xlapipe may add keys
            yield from problems(item, inner, f"{where}.{key}")


def inferred(examples: Sequence[Any], path: str = "") -> dict[str, Any]:
    """A schema of all examples, which are at `path`, e.g. `.rows[].values`."""
    types = sorted({type_name(example) for example in examples})
    if "number" in types and "integer" in types:
        types.remove("integer")
    schema: dict[str, Any] = {}
    if types and types != ["null"]:  # of which type it is otherwise is unknown
        schema["type"] = types[0] if len(types) == 1 else types
    items = [item for example in examples if isinstance(example, list) for item in example]
    if items:
        schema["items"] = inferred(items, f"{path}[]")
    objects = [example for example in examples if isinstance(example, dict)]
    if objects:
        schema.update(_inferred_object(objects, path))
    return schema


def _inferred_object(objects: Sequence[Mapping[str, Any]], path: str) -> dict[str, Any]:
    if path.rpartition(".")[2] in MAPS and path != _FIXED:
        values = [value for item in objects for value in item.values()]
        return {"additionalProperties": inferred(values)}
    keys = sorted({name for item in objects for name in item})
    return {
        "properties": {
            name: inferred([item[name] for item in objects if name in item], f"{path}.{name}")
            for name in keys
        },
        "required": [name for name in keys if all(name in item for item in objects)],
    }
