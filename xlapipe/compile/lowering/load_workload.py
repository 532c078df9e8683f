"""Imports a workload from the module that defines it."""

import functools
import importlib
import inspect
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from xlapipe.errors import ParameterError, WorkloadError
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload


def _workloads_of(module: Any) -> list[str]:
    """Names of the workloads of a module, and of functions defined in it, which may return one."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, Workload)
        or (inspect.isfunction(value) and value.__module__ == getattr(module, "__name__", None))
    ]


def load_workload(reference: WorkloadReference, *, devices: int | None = None) -> Workload:
    """Imports the module of a reference, and calls the function if the attribute is one."""
    value = named_value(reference)
    if callable(value) and not isinstance(value, Workload):
        _refuse_installed(reference, _module_of(value))
        arguments = dict(reference.arguments or {})
        if devices is not None and "devices" in inspect.signature(value).parameters:
            arguments.setdefault("devices", devices)
        _check_parameters(reference, value, arguments)
        value = value(**arguments)
    elif reference.arguments is not None:
        _, _, attribute = reference.target.partition(":")
        raise WorkloadError(
            f"{reference}: {attribute} is not a function, so it takes no arguments; fix: leave "
            "them out"
        )
    if not isinstance(value, Workload):
        raise WorkloadError(
            f"{reference}: expected an xlapipe.Workload or a function that returns one, "
            f"found {type(value).__name__}; fix: xlapipe.Workload(name=…, fn=step, args=…)"
        )
    return value


def named_value(reference: WorkloadReference) -> Any:
    """What a reference names, a Workload or a function; imports its module."""
    module_name, _, attribute = reference.target.partition(":")
    if reference.folder is not None:
        sys.path.insert(0, str(reference.folder))
    _refuse_installed(reference, module_name.partition(".")[0])
    value: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = _workloads_of(value)
            near = get_close_matches(part, names, n=3)
            raise WorkloadError(
                f"{reference}: {module_name} has no attribute {part!r}"
                + (
                    "; fix: name a workload, or a function that returns one: "
                    f"{', '.join(near or names)}"
                    if names
                    else ", and no workload; fix: assign an xlapipe.Workload to a name in it"
                )
            )
        value = getattr(value, part)
    return value


def _module_of(function: Any) -> str:
    """The outermost package of a function, of what it wraps, or of an object that can be called."""
    while isinstance(function, functools.partial) or hasattr(function, "__func__"):
        function = getattr(function, "func", None) or function.__func__
    function = inspect.unwrap(function)
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]


def _refuse_installed(reference: WorkloadReference, package: str) -> None:
    """Refuses what is of Python itself or of an installed package, unless it is registered.

    The name of a workload may come from a file of another person, and be that of any function.
    """
    is_registered = ":" not in reference.name.partition("(")[0]
    if reference.folder is None or is_registered:
        return
    # The folder of the workload is first on the path, but not before what is imported already.
    is_python = package in sys.stdlib_module_names
    spec = None if is_python else PathFinder.find_spec(package)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    parts = {part for place in places if place for part in Path(place).parts}
    if is_python or parts & {"site-packages", "dist-packages"}:
        kind = "a module of Python itself" if is_python else "an installed package"
        is_there = any((reference.folder / name).exists() for name in (package, f"{package}.py"))
        fix = "name a workload of the project, or register it below [tool.xlapipe.workloads]"
        raise WorkloadError(
            f"{reference}: {package} is {kind}, whose functions are not called; fix: "
            f"{f'give {package}.py another name' if is_there else fix}"
        )


def _check_parameters(
    reference: WorkloadReference, function: Any, arguments: Mapping[str, Any]
) -> None:
    parameters = inspect.signature(function).parameters.values()
    missing = [
        item.name
        for item in parameters
        if item.default is item.empty
        and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
        and item.name not in arguments
    ]
    if missing:
        example = ", ".join(f"{name}=…" for name in missing)
        raise WorkloadError(
            f"{reference}: expected a function that returns a Workload, found one that needs "
            f"{', '.join(missing)}; fix: {reference.target}({example}), or Workload(fn=…, args=…) "
            "if it is the step"
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [item.name for item in parameters if item.kind is not item.POSITIONAL_ONLY]
    unknown = [name for name in arguments if name not in names]
    if unknown:
        raise ParameterError(
            f"{reference}: no parameter {' or '.join(map(repr, unknown))}; "
            f"it has {', '.join(names) or 'none'}; fix: name one of these, or add the parameter"
        )
