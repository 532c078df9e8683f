"""`list`, `targets`, `doctor`: what there is, and what is missing."""

import argparse

from xlapipe.cli.options import Commands, print_json


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    commands.add("list", _list, "List the registered workloads.")
    commands.add("targets", _targets, "List the GPUs to compile for.")
    commands.add("doctor", _doctor, "Say what is missing to compile and to run.")


def _list(options: argparse.Namespace) -> int:
    from xlapipe.registry import registered_workloads

    found = registered_workloads()
    if options.json:
        print_json([{"name": each.name, "target": each.target} for each in found])
        return 0
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        print(f"{each.name:<{width}}  {each.target}")
    if not found:
        print("no workload is registered; `xlapipe dump module:attribute` takes one of yours")
    return 0


def _targets(options: argparse.Namespace) -> int:
    from xlapipe.targets.target import catalogue

    if options.json:
        print_json(
            [
                {
                    "name": row.name,
                    "description": row.description,
                    "compute_capability": row.compute_capability,
                    "device_memory_bytes": row.device_memory_size,
                    "supported": row.unsupported is None,
                    "unsupported": row.unsupported,
                }
                for row in catalogue()
            ]
        )
        return 0
    for row in catalogue():
        reason = f"  not supported: {row.unsupported}" if row.unsupported else ""
        print(
            f"{row.name:<14} {row.compute_capability:>5}  {row.device_memory_size:>15,} B  "
            f"{row.description}{reason}"
        )
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from xlapipe.environment.doctor import examine

    report = examine()
    if options.json:
        print_json(asdict(report))
    else:
        for check in report.checks:
            failed = "MISSING" if check.missing else "WRONG"
            mark = {True: "ok", False: failed, None: "-"}[check.ok]
            found = "found " if mark == "WRONG" else ""
            print(f"{mark:<8} {check.name}: {found}{check.found}")
            if check.ok is False:
                fix = f"; fix: {check.remedy}" if check.remedy is not None else ""
                print(f"         expected {check.expected}{fix}")
            elif check.remedy is not None:
                print(f"         optional: {check.expected}; to install: {check.remedy}")
    return 0 if report.can_compile else 2
