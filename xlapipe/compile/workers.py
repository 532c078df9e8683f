"""Where jobs are compiled: threads of this process, or the workers of a Dask cluster.

A cluster needs the optional extra `cluster`. Its workers run in the same folder as this process, on
a shared file system or in a copy, with the same versions of xlapipe and jax. Dask gives the jobs of
a worker that is lost to the others; results that have arrived are not computed again.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from xlapipe.compile.child_process import children_stopped
from xlapipe.compile.job import Job
from xlapipe.errors import XlapipeError

Outcome = TypeVar("Outcome")
_CONNECT_SECONDS = 20
_PACKAGES = ("xlapipe", "jax", "jaxlib")


@contextmanager
def workers(at_once: int, scheduler: str | None) -> Iterator[Executor]:
    if scheduler is None:
        pool = ThreadPoolExecutor(max_workers=at_once)
        try:
            yield pool
        except BaseException:
            # Threads wait for their children: without them they end at once.
            with children_stopped():
                pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown()
        return
    client = _client(scheduler)
    try:
        with client.get_executor(pure=False) as pool:
            yield pool
    finally:
        client.close()


def submit(
    pool: Executor, scheduler: str | None, work: Callable[[Job], Outcome], job: Job
) -> "Future[Outcome]":
    """Starts `work(job)`, on a worker of the cluster if there is one."""
    if scheduler is None:
        return pool.submit(work, job)
    return pool.submit(_on_worker, os.getcwd(), _versions(), work, job)


def error_of(future: "Future[Any]", job: Job) -> XlapipeError | None:
    """The error of a job that has ended; None if it has a result."""
    error = future.exception()
    if error is None or isinstance(error, XlapipeError):
        return error
    if type(error).__name__ == "KilledWorker":
        return XlapipeError(
            f"{job.reference.name}: every worker of the cluster that compiled it was lost; fix: "
            "start workers with more memory, or with fewer threads each"
        )
    raise error


def _client(scheduler: str) -> Any:
    try:
        dask: Any = import_module("distributed")
    except ImportError:
        raise XlapipeError("--scheduler needs Dask; fix: pip install 'xlapipe[cluster]'") from None
    try:
        return dask.Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise XlapipeError(
            f"--scheduler {scheduler}: no Dask scheduler answers: {str(error)[:200]}; fix: start "
            "one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"
        ) from None


def _on_worker(
    folder: str, versions: Mapping[str, str | None], work: Callable[[Job], Outcome], job: Job
) -> Outcome:
    """Runs on a worker, in the folder of the process that submitted the job."""
    host = socket.gethostname()
    if not Path(folder).is_dir():
        raise XlapipeError(
            f"{job.reference.name}: the worker on {host} has no folder {folder}; fix: use a "
            "shared file system, or the same path on every worker"
        )
    installed = _versions()
    if installed != versions:
        raise XlapipeError(
            f"{job.reference.name}: the worker on {host} has {installed}, expected {versions}; "
            "fix: install the same versions there"
        )
    os.chdir(folder)
    return work(job)


def _versions() -> dict[str, str | None]:
    return {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
