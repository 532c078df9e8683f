"""The pytest plugin: `xlapipe_plan`, its options, and the marker `xlapipe_device`.

Loading it imports neither jax nor the rest of xlapipe, so that runs without it are not slower.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xlapipe.api.testing.session import PlansOfTest

# Keys of `report.user_properties`, which xdist sends from the workers to the controller.
_COMPILED, _CACHED, _WRITTEN = "xlapipe_compiled", "xlapipe_cached", "xlapipe_written"
_NOTED = "xlapipe_noted"
_plans = pytest.StashKey["PlansOfTest"]()
_made = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xlapipe", "xlapipe: plans of compiled steps")
    group.addoption(
        "--xlapipe-target",
        metavar="NAME",
        default=None,
        help="GPU to compile for if the test does not name one: a name of `xlapipe targets`, or "
        "the path of a target config; default: that of [tool.xlapipe], else h200",
    )
    group.addoption(
        "--xlapipe-update",
        action="store_true",
        help="write goldens instead of comparing with them, and list what changed; not in CI",
    )
    group.addoption(
        "--xlapipe-strict",
        action="store_true",
        help="fail instead of skip if something needed for compiling is not installed",
    )
    group.addoption(
        "--xlapipe-cache",
        metavar="DIR",
        default=None,
        help="folder for compiled plans, keyed by content; default: pytest's cache folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "xlapipe_device: the test needs an NVIDIA GPU; without one it is skipped"
    )
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    if config.getoption("xlapipe_update") and in_ci:
        raise pytest.UsageError(
            "--xlapipe-update: refused in CI (the environment variable CI is set); fix: write the "
            "goldens locally, review what changed, and commit them"
        )
    config.pluginmanager.register(_Summary(), "xlapipe-summary")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("xlapipe_device") is not None:
        from xlapipe.devices.environment.machine import Machine

        if Machine.local().gpu() is None:
            pytest.skip("no NVIDIA GPU is attached: nvidia-smi lists none")


@pytest.fixture
def xlapipe_plan(request: pytest.FixtureRequest) -> "PlansOfTest":
    """Compiles a step for a GPU that need not be attached: `xlapipe_plan(fn, *args, donate=0)`.

    If something needed for compiling is missing, for every vendor's devices, the test is skipped;
    under --xlapipe-strict it fails.
    """
    __tracebackhide__ = True
    from xlapipe.compile.doctor import missing_to_compile
    from xlapipe.devices.platforms import PLATFORMS

    missing = [missing_to_compile(platform=platform.name) for platform in PLATFORMS]
    for check in missing[0] if all(missing) else ():
        text = f"cannot compile: {check.problem}"
        if request.config.getoption("xlapipe_strict"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)

    from xlapipe.api.testing.goldens import Goldens
    from xlapipe.api.testing.session import PlansOfTest
    from xlapipe.devices.environment.machine import hide_missing_gpu

    hide_missing_gpu()
    config, item = request.config, request.node

    def report(key: str, value: object) -> None:
        item.user_properties.append((key, value))

    plans = PlansOfTest(
        file=request.path,
        test=item.nodeid.partition("::")[2].replace("::", "."),
        root=config.rootpath,
        target=config.getoption("xlapipe_target") or None,
        cache=_cache_folder(config),
        goldens=Goldens(
            folder=request.path.parent / "hlo_dumps",
            root=config.rootpath,
            update=config.getoption("xlapipe_update"),
            command=f"pytest --xlapipe-update '{item.nodeid}'",
            on_written=lambda path, changes: report(_WRITTEN, [path, *changes]),
            made=config.stash.setdefault(_made, {}),
        ),
        on_plan=lambda compiled: report(_COMPILED if compiled else _CACHED, 1),
        on_note=lambda note: report(_NOTED, f"{item.nodeid}: {note}"),
    )
    item.stash[_plans] = plans
    return plans


def _cache_folder(config: pytest.Config) -> Path:
    chosen = config.getoption("xlapipe_cache")
    if chosen:
        return Path(os.path.abspath(Path(config.invocation_params.dir, chosen)))
    cache = getattr(config, "cache", None)  # None under -p no:cacheprovider
    if cache is not None:
        return Path(cache.mkdir("xlapipe"))
    from xlapipe.devices.environment.scratch import cache_folder

    return cache_folder("compiles")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, None, None]:
    """Puts the explanation of a false answer before the message of the assertion."""
    plans = item.stash.get(_plans, None)
    if plans is not None and call.excinfo is not None:
        error = call.excinfo.value
        if isinstance(error, AssertionError):
            from xlapipe.api.testing.session import explanations

            texts = explanations(plans.answers, str(error))
            if texts:
                error.args = ("\n".join([*texts, str(error)]).rstrip(),)
    yield


class _Summary:
    """Prints the number of plans, notes and written goldens of all workers at the run's end."""

    def __init__(self) -> None:
        self._counts = {_COMPILED: 0, _CACHED: 0}
        self._written: list[list[str]] = []
        self._notes: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":  # the last report of a test, which has all properties
            return
        for key, value in report.user_properties:
            if key in self._counts:
                self._counts[key] += 1
            elif key == _NOTED:
                self._notes[str(value)] = None
            elif key == _WRITTEN and isinstance(value, list):
                self._written.append(value)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        compiled, cached = self._counts[_COMPILED], self._counts[_CACHED]
        if compiled or cached:
            terminalreporter.section("xlapipe")
            terminalreporter.line(f"plans: {compiled} compiled, {cached} unchanged")
        for note in self._notes:
            terminalreporter.line(f"note: {note}")
        for path, *changes in self._written:
            terminalreporter.line(f"wrote {path}")
            for sentence in changes:
                terminalreporter.line(f"  {sentence}")
