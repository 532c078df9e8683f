"""The command line: the only module that prints or exits.

Exit codes: 0 good, 1 an expectation failed or plans differ, 2 bad input or a failed compile.
"""

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.diff import Difference
    from xlapipe.jobs import Asked

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        with _no_garbage_collection():
            code = command(options)
            sys.stdout.flush()
    except XlapipeError as error:
        if getattr(options, "json", False):
            print(json.dumps({"error": str(error)}))
        print(f"xlapipe: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output went away (`| head`); leave stdout nothing to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("xlapipe: interrupted", file=sys.stderr)
        return 130
    return code


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A plan is some 100,000 small objects that live to the end: collecting finds no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xlapipe",
        description="Compile a JAX step for an NVIDIA GPU on any machine, and check XLA's plan.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Command, text: str, group: Any = commands
    ) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = group.add_parser(name, help=text, description=text)
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(command=run)
        return added

    command("list", _list, "List the registered workloads.")
    command("targets", _targets, "List the GPUs to compile for.")
    command("doctor", _doctor, "Say what is missing to compile and to run.")

    dump = command("dump", _dump, "Compile workloads and write their dumps.")
    dump.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=_WORKLOAD_HELP)
    dump.add_argument("--all", action="store_true", help="every registered workload")
    _add_compile_options(dump)
    dump.add_argument("--out", type=Path, default=Path("hlo_dumps"), help="default: hlo_dumps")
    dump.add_argument("--tune", action="store_true", help="keep the attached GPU's autotuning")
    dump.add_argument(
        "--locked", action="store_true", help="with the locks that lie beside the goldens in --out"
    )
    dump.add_argument("--jobs", type=_at_least_one, default=None, help="compiles at once")

    build = command("build", _build, "Compile a workload into an executable for a GPU to load.")
    build.add_argument("workload", metavar="WORKLOAD", help=_WORKLOAD_HELP)
    _add_compile_options(build)
    build.add_argument("--out", type=Path, required=True, help="the folder to make")

    run = command("run", _run, "Run a built executable on the attached GPU.")
    run.add_argument("path", type=Path, metavar="DIR", help="a folder that `build` made")
    run.add_argument("--inputs", default="random:0", help="random:SEED or FILE.npz")
    run.add_argument("--repeat", type=_at_least_one, default=10, metavar="N", help="timed calls")

    target = commands.add_parser("target", help="Capture the configuration of a GPU.")
    target_commands = target.add_subparsers(required=True, metavar="COMMAND")
    capture = command("capture", _target_capture, _CAPTURE_HELP, target_commands)
    capture.add_argument("--out", type=Path, help="default: print it")

    show = command("show", _show, "Show the plan of a dump.")
    show.add_argument("path", type=Path, metavar="PATH", help=_PATH_HELP)

    report = command("report", _report, "Write a report on dumps: one HTML file, or text.")
    report.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=_PATH_HELP)
    report.add_argument("--out", type=Path, metavar="FILE", help="default: report.html")
    report.add_argument("--text", action="store_true", help="print Markdown, or write it to --out")
    report.add_argument(
        "--xprof", type=Path, metavar="DIR", help="write a log folder for XProf's memory viewer"
    )

    check = command("check", _check, "Hold plans against their expectations.")
    check.add_argument(
        "subjects",
        nargs="+",
        metavar="PATH|WORKLOAD",
        help="a dump as in `show`, or a workload, which is compiled first",
    )
    _add_compile_options(check)

    diff = command("diff", _diff, "Say what is different between two plans, and what it costs.")
    diff.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=f"two: {_PATH_HELP}")
    diff.add_argument("--workload", help=f"compile it twice instead: {_WORKLOAD_HELP}")
    diff.add_argument("--versions", metavar="X,Y", help="with two versions of jax")
    diff.add_argument("--options", metavar="K=V,…", help="without and with these XLA options")
    diff.add_argument("--gemm", metavar="X[,Y]", help="with two policies; or one, for both")
    _add_target_options(diff)
    diff.add_argument("--out", type=Path, help="keep the two dumps there")
    return parser


_WORKLOAD_HELP = (
    "a registered name (`xlapipe list`), or module:attribute from the current folder; arguments "
    "may follow: 'qwen3-decode(layers=28)'"
)
_CAPTURE_HELP = "Write the attached GPU's target config, with its provenance."
_PATH_HELP = "a dump directory, an .hlo.pb, or any *buffer-assignment*.txt of XLA's (gzip too)"


def _add_compile_options(parser: argparse.ArgumentParser) -> None:
    _add_target_options(parser)
    parser.add_argument(
        "--gemm",
        action="append",
        choices=("auto", "cublas", "triton"),
        help="which backends matrix products may go to; may be repeated; default: auto",
    )


def _add_target_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", default=None, help="a name of `xlapipe targets`, or `attached`; default: h200"
    )
    parser.add_argument("--target-config", type=Path, help="a GpuTargetConfigProto as text")
    parser.add_argument(
        "--autotune-lock",
        type=Path,
        metavar="FILE",
        help="a device's autotune results; XLA's own file of them takes --target-config too",
    )
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="per compile")


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {number}")
    return number


def _print_json(data: Any) -> None:
    # Without indentation: json is six times faster so, and `| jq` makes it pretty.
    print(json.dumps(data, ensure_ascii=False))


def _list(options: argparse.Namespace) -> int:
    from xlapipe.registry import registered_workloads

    found = registered_workloads()
    if options.json:
        _print_json([{"name": each.name, "target": each.target} for each in found])
        return 0
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        print(f"{each.name:<{width}}  {each.target}")
    if not found:
        print("no workload is registered; `xlapipe dump module:attribute` takes one of yours")
    return 0


def _targets(options: argparse.Namespace) -> int:
    from xlapipe.target import catalogue

    if options.json:
        _print_json(
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

    from xlapipe.doctor import examine

    report = examine()
    if options.json:
        _print_json(asdict(report))
    else:
        for check in report.checks:
            mark = {True: "ok", False: "MISSING", None: "-"}[check.ok]
            print(f"{mark:<8} {check.name}: {check.found}")
            if check.ok is False:
                print(f"         expected {check.expected}; mend it with: {check.remedy}")
    return 0 if report.can_compile else 2


def _asked(options: argparse.Namespace) -> "Asked":
    from xlapipe.jobs import Asked

    return Asked(
        target=options.target,
        target_config=options.target_config,
        policies=tuple(options.gemm or ()),
        autotune_lock=options.autotune_lock,
        timeout_seconds=options.timeout,
        tune=getattr(options, "tune", False),
    )


def _dump(options: argparse.Namespace) -> int:
    from xlapipe.compile import Job
    from xlapipe.jobs import jobs_of, locked_jobs
    from xlapipe.pipeline import Made, make_dumps
    from xlapipe.registry import registered_workloads
    from xlapipe.report.figures import dump_row
    from xlapipe.report.terminal import DumpTable

    names = list(options.workloads)
    if options.all:
        names += [each.name for each in registered_workloads() if each.name not in names]
    if not names:
        raise XlapipeError("name a workload, or --all; `xlapipe list` lists them")
    asked = _asked(options)
    jobs = locked_jobs(names, options.out, asked) if options.locked else jobs_of(names, asked)
    rows: list[dict[str, Any]] = []
    errors: list[XlapipeError] = []
    if not jobs and not options.json:
        print(f"no autotune lock of this jaxlib lies in {options.out}: nothing to compile")
        return 0
    with DumpTable(len(jobs), silent=options.json) as table:

        def on_done(job: Job, outcome: Made | XlapipeError) -> None:
            if isinstance(outcome, XlapipeError):
                errors.append(outcome)
                table.add_failure(job.reference.name, job.policy)
            else:
                if job.target is None:
                    _record_run(outcome)
                rows.append(
                    dump_row(outcome.dump, changed=outcome.changed, seconds=outcome.seconds)
                )
                table.add(rows[-1])

        at_once = options.jobs or min(4, os.cpu_count() or 1)
        make_dumps(jobs, options.out, at_once=at_once, on_done=on_done)
    if options.json:
        _print_json({"dumps": rows, "errors": [str(error) for error in errors]})
    for error in errors:
        print(f"xlapipe: error: {error}", file=sys.stderr)
    return 2 if errors else 0


def _record_run(made: Any) -> None:
    """Leaves beside a device's golden what device it was, and by which command."""
    from xlapipe.machine import Machine
    from xlapipe.run_record import run_record, write_run_record

    manifest, gpu = made.dump.manifest, Machine.here().gpu()
    record = run_record(
        device=manifest.target_description,
        driver=gpu.driver_version if gpu is not None else None,
        versions=manifest.versions,
        command=["xlapipe", *sys.argv[1:]],
    )
    write_run_record(made.dump.path, record)


def _build(options: argparse.Namespace) -> int:
    from xlapipe.jobs import jobs_of
    from xlapipe.pipeline import build
    from xlapipe.report.figures import dump_row
    from xlapipe.report.terminal import DumpTable

    asked = _asked(options)
    if len(asked.policies) > 1:
        raise XlapipeError("build makes one executable: give one --gemm")
    (job,) = jobs_of([options.workload], asked)
    with DumpTable(1, silent=options.json) as table:
        made = build(job, options.out)
        row = dump_row(made.dump, changed=made.changed, seconds=made.seconds)
        table.add(row)
    if options.json:
        _print_json(row)
    return 0


def _run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from xlapipe.run import run

    result = run(options.path, inputs=options.inputs, repeat=options.repeat)
    figures = {
        **asdict(result),
        "median_call_seconds": result.median_call_seconds,
    }
    if options.json:
        _print_json(figures)
        return 0
    print(f"{options.path} on {result.device}, {result.autotuning}")
    print(f"  loaded in {result.load_seconds:.3f} s")
    median = result.median_call_seconds
    if median is not None:
        print(f"  {median * 1000:.3f} ms per call (median of {len(result.call_seconds)})")
    for output in result.outputs:
        print(f"  {output.path} {output.dtype}{list(output.shape)} sha256 {output.sha256}")
    if result.memory is not None:
        for name, value in asdict(result.memory).items():
            print(f"  {name:<22} {value:>18,}")
        print(f"  unexplained: {result.memory.unexplained_share:.3%} of what was measured")
    return 0


def _target_capture(options: argparse.Namespace) -> int:
    from xlapipe.capture_target import captured_target, write_target

    captured = captured_target()
    if options.out is not None:
        write_target(options.out, captured)
    if options.json:
        _print_json(captured.to_json())
    elif options.out is None:
        print(captured.text(), end="")
    else:
        print(f"{options.out}: {captured.device}, driver {captured.driver or 'unknown'}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from xlapipe.dump import is_dump, open_dump
    from xlapipe.plan.donation import donations
    from xlapipe.plan.program import Program
    from xlapipe.read import read_path
    from xlapipe.report.figures import dump_figures, plan_figures

    path: Path = options.path
    if is_dump(path):
        dump = open_dump(path)
        figures, plan, program = dump_figures(dump), dump.plan, dump.program
    else:
        plan = read_path(path)
        figures, program = plan_figures(plan), Program(plan)
    if options.json:
        _print_json(figures)
    else:
        from xlapipe.report.terminal import print_plan

        print_plan(str(path), figures, plan, donations(program))
    return 0


def _report(options: argparse.Namespace) -> int:
    from xlapipe.output import write_files
    from xlapipe.report.comparison import compare
    from xlapipe.report.data import report_data
    from xlapipe.report.subject import read_subject

    subjects = [read_subject(path) for path in options.paths]
    difference = compare(*subjects) if len(subjects) == 2 else None
    files: dict[Path, bytes] = {}
    if options.xprof is not None:
        from xlapipe.report.xprof import xprof_files

        files |= {options.xprof / path: data for path, data in xprof_files(subjects).items()}
    if options.text:
        from xlapipe.report.markdown import render_text

        text = render_text(subjects, difference)
        if options.out is not None:
            files[options.out] = text.encode()
        elif not options.json:
            print(text, end="")
    elif options.out is not None or not (options.json or options.xprof):
        from xlapipe.report.page import render_page

        page = render_page(subjects, difference)
        # A name in a dump may hold half a surrogate pair, which no UTF-8 text can.
        files[options.out or Path("report.html")] = page.encode(errors="replace")
    write_files(files)
    if options.json:
        written = [str(path) for path in files]
        _print_json({**report_data(subjects, difference), "written": written})
    else:
        for path, content in files.items():
            print(f"{path}: {len(content):,} B")
    return 0


def _check(options: argparse.Namespace) -> int:
    from xlapipe.report.donation import donation_figures
    from xlapipe.report.figures import failed, finding_figures

    results = []
    code = 0
    for name, label, findings, notes, donated in _checked(options):
        code = max(code, 1 if failed(findings) else 0)
        if options.json:
            results.append(
                {
                    "subject": name,
                    "autotuning": label,
                    "holds": not failed(findings),
                    "notes": notes,
                    "findings": [finding_figures(finding) for finding in findings],
                    "donations": [donation_figures(row) for row in donated],
                }
            )
        else:
            from xlapipe.report.terminal import print_findings

            print_findings(name, label, findings, notes, donated)
    if options.json:
        _print_json(results)
    return code


def _diff(options: argparse.Namespace) -> int:
    from xlapipe.report.figures import difference_figures

    difference = _difference(options)
    if options.json:
        _print_json(difference_figures(difference))
    else:
        from xlapipe.report.difference import print_difference

        print_difference(difference)
    return 0 if difference.same else 1


def _difference(options: argparse.Namespace) -> "Difference":
    if options.workload is None:
        from xlapipe.diff import compare_paths

        given = [options.versions, options.options, options.gemm, options.out]
        if len(options.paths) != 2 or any(value is not None for value in given):
            raise XlapipeError(
                "diff takes two paths, or --workload with --versions, --options or --gemm; "
                f"found {len(options.paths)} paths and no --workload"
            )
        return compare_paths(*options.paths)
    if options.paths:
        raise XlapipeError("diff takes two paths or --workload, not both")

    import tempfile
    from contextlib import ExitStack

    from xlapipe.jobs import Asked
    from xlapipe.pairs import compare_pair, pair
    from xlapipe.report.difference import Steps

    asked = Asked(
        target=options.target,
        target_config=options.target_config,
        autotune_lock=options.autotune_lock,
        timeout_seconds=options.timeout,
    )
    with Steps().shown() as steps:
        jobs = pair(
            options.workload,
            asked,
            versions=options.versions,
            options=options.options,
            gemm=options.gemm,
            say=steps.say,
        )
        steps.say(f"compiling {options.workload} with {' and with '.join(jobs)}")
        with ExitStack() as stack:
            out = options.out
            if out is None:
                scratch = tempfile.TemporaryDirectory(prefix="xlapipe-diff-")
                out = stack.enter_context(scratch)
            return compare_pair(
                jobs, Path(out), on_done=lambda name: steps.say(f"compiled with {name}")
            )


def _checked(options: argparse.Namespace) -> Any:
    """Per subject: name, autotuning label, findings, notes, donations."""
    import tempfile

    from xlapipe.dump import Dump, is_dump, open_dump
    from xlapipe.expect import check_all
    from xlapipe.plan.donation import donations
    from xlapipe.read import read_path

    def of_dump(name: str, dump: Dump) -> Any:
        own = sum(item is None for item in dump.manifest.expectations)
        notes = [f"{own} expectations of the workload's own classes need its code"] if own else []
        if not dump.expectations:
            notes.append("no expectations are recorded; the plan's invariants hold")
        findings = check_all(dump.expectations, dump.program)
        return name, dump.manifest.autotuning, findings, notes, donations(dump.program)

    subjects = [(subject, Path(subject)) for subject in options.subjects]
    compiled = [name for name, path in subjects if not path.exists()]
    jobs = {}
    if compiled:
        from xlapipe.jobs import jobs_of

        jobs = {name: jobs_of([name], _asked(options)) for name in compiled}
    for name, path in subjects:
        if is_dump(path):
            yield of_dump(name, open_dump(path))
        elif path.exists():
            read_path(path)
            note = "no manifest, so no expectations; the plan's invariants hold"
            yield name, "unknown", (), [note], ()
        for job in jobs.get(name, ()):
            from xlapipe.pipeline import make_dump

            with tempfile.TemporaryDirectory(prefix="xlapipe-check-") as scratch:
                made = make_dump(job, Path(scratch))
                yield of_dump(f"{name} ({made.dump.manifest.target}, {job.policy})", made.dump)


if __name__ == "__main__":
    sys.exit(main())
