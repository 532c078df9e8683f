"""Two compiles of one workload that are to be compared: by version, XLA options or GEMM policy."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from xlapipe.compiling.jax_environments import parsed_version, python_with_jax
from xlapipe.compiling.job import GemmPolicy, Job, XlaOption
from xlapipe.compiling.make_jobs import Asked, jobs_of
from xlapipe.compiling.pipeline import Made, make_dumps
from xlapipe.diff import Difference, compare_opened
from xlapipe.dumps.opened import Opened
from xlapipe.errors import XlapipeError

_BETWEEN_OPTIONS = re.compile(r",(?=\s*xla_\w+=)")
_OPTION = re.compile(r"\s*(xla_\w+)=(.*)")


def pair(
    workload: str,
    asked: Asked,
    *,
    versions: str | None,
    options: str | None,
    gemm: str | None,
    say: Callable[[str], None],
) -> dict[str, Job]:
    """The two compiles by what tells them apart, A first; other versions of jax are installed.

    Args:
      asked: what both compiles have in common.
      versions: two versions of jax, e.g. `0.10.2,0.11.2`.
      options: XLA options that B has and A has not, e.g. `xla_a=1,xla_b=true`.
      gemm: a GEMM policy for both compiles, or two, one for each.
      say: told what takes long.

    Raises:
      XlapipeError: what is given does not make two compiles, or cannot be had.
    """
    policies = _policies(gemm)
    given = [versions is not None, options is not None, len(policies) == 2]
    if sum(given) != 1:
        raise XlapipeError(
            "--workload: give one thing in which the two compiles differ: --versions X,Y, "
            f"--options K=V, or --gemm X,Y; found {sum(given) or 'none'} of them"
        )
    if versions is not None:
        return _of_versions(workload, replace(asked, policies=policies), versions, say)
    if options is not None:
        extra = parsed_options(options)
        common = replace(asked, policies=policies)
        (default,) = jobs_of([workload], common)
        (other,) = jobs_of([workload], replace(common, options=extra))
        return {"XLA's default options": default, options: other}
    return {
        policy: jobs_of([workload], replace(asked, policies=(policy,)))[0] for policy in policies
    }


def _policies(gemm: str | None) -> tuple[str, ...]:
    policies = tuple(gemm.split(",")) if gemm is not None else ()
    known = [policy.value for policy in GemmPolicy]
    if len(policies) > 2 or len(set(policies)) < len(policies) or not set(policies) <= set(known):
        raise XlapipeError(
            f"--gemm {gemm}: expected one or two different ones of {', '.join(known)}"
        )
    return policies


def _of_versions(
    workload: str, asked: Asked, versions: str, say: Callable[[str], None]
) -> dict[str, Job]:
    names = versions.split(",")
    if len(names) != 2 or names[0] == names[1]:
        raise XlapipeError(f"--versions {versions}: expected two versions of jax, `0.10.2,0.11.2`")
    if asked.autotune_lock is not None:
        raise XlapipeError("--autotune-lock is of one version of jaxlib, --versions are two")
    for name in names:
        parsed_version(name)
    (job,) = jobs_of([workload], asked)
    here = version("jaxlib")
    return {
        f"jax {name}": job if name == here else replace(job, python=python_with_jax(name, say=say))
        for name in names
    }


def parsed_options(text: str) -> dict[str, XlaOption]:
    """XLA options in `K=V,K=V`; a value may hold commas.

    >>> parsed_options("xla_a=true,xla_b=FUSION,CUBLAS,xla_c=3")
    {'xla_a': True, 'xla_b': 'FUSION,CUBLAS', 'xla_c': 3}

    Raises:
      XlapipeError: text of another form, or an option that xlapipe sets itself.
    """
    found: dict[str, XlaOption] = {}
    for part in _BETWEEN_OPTIONS.split(text):
        match = _OPTION.fullmatch(part)
        if match is None:
            raise XlapipeError(
                f"--options {text}: expected `xla_name=value`, separated by commas, found {part!r}"
            )
        name, value = match[1], match[2].strip()
        if name.startswith("xla_dump_"):
            raise XlapipeError(f"--options: {name} is what xlapipe sets to have its dump")
        found[name] = _typed(value)
    return found


def _typed(value: str) -> XlaOption:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


def compare_pair(
    jobs: Mapping[str, Job], out: Path, *, on_done: Callable[[str], None]
) -> Difference:
    """Compiles both, at once, writes their dumps below `out`, and compares them.

    Raises:
      XlapipeError: `out` cannot be written, or of the first compile that failed.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise XlapipeError(f"{out}: cannot be written: {error.strerror}") from None
    made: dict[str, Made] = {}
    errors: list[XlapipeError] = []
    names = {id(job): name for name, job in jobs.items()}

    def done(job: Job, outcome: Made | XlapipeError) -> None:
        if isinstance(outcome, XlapipeError):
            errors.append(outcome)
        else:
            made[names[id(job)]] = outcome
            on_done(names[id(job)])

    make_dumps(tuple(jobs.values()), out, at_once=2, on_done=done)
    if errors:
        raise errors[0]
    a, b = (made[name].dump for name in jobs)
    labels: Sequence[str] = tuple(jobs)
    return compare_opened(
        Opened.of_dump(a),
        Opened.of_dump(b),
        names=(labels[0], labels[1]),
    )
