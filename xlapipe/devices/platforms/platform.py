"""The interface to a vendor: names, files and options that XLA uses for it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xlapipe.devices.platforms.dump_files import DumpFile, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """What traced code may ask of the device.

    Attributes:
      device_kind: e.g. `NVIDIA H200`.
      core_count: number of streaming multiprocessors of a GPU.
      platform: as `jax.default_backend()` gives it (`gpu`, `tpu`), not the platform's name.
      platform_name: the platform's name, by which code may ask for its devices too.
      platform_version: as a client of the platform gives it.
      compute_capability: compute capability of an NVIDIA GPU, e.g. `9.0`, or the architecture of
        an AMD GPU, `gfx942`.
      kind_for_pallas: the name by which Pallas lowers for the device; None for its kind.
      cudnn_version, cusolver_version: as the libraries give them, e.g. 91900 for 9.19.0; None on
        a platform without them.
      cub_version: as XLA writes it, `0.0.0` if the config does not have it; None likewise.
    """

    device_kind: str
    core_count: int
    platform: str
    platform_name: str
    platform_version: str
    compute_capability: str | None = None
    kind_for_pallas: str | None = None
    cudnn_version: int | None = None
    cusolver_version: int | None = None
    cub_version: str | None = None


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One vendor's accelerators, as jax and XLA see them.

    Attributes:
      name: in jax's `lowering_platforms` and `get_topology_desc(platform=...)`.
      vendor: the vendor's name, for messages.
      noun: `GPU` or `TPU`.
      config_name: its name in a GpuTargetConfigProto; None if it has no such configuration.
      recorded_packages: distributions whose versions a manifest records in addition to jax's.
      compiler_packages: all distributions that affect a plan; part of a cache key.
      own_compiler: the one that compiles, if its version is not that of jaxlib.
      dump_files: every file that XLA dumps for a module, in the order of the stages.
      gemm_policies: XLA options that make each GEMM policy.
      gemm_calls: backend of a matrix product by its custom call target, the first prefix that
        fits; values are those of `xlapipe.plans.gemms.GemmBackend`.
      gemm_fusion_kinds: the same for a fusion that holds a `dot`, by its backend config's kind.
      library_names: names of its own libraries, by the backends of `gemm_calls` and
        `gemm_fusion_kinds` that stand for them.
      kernel_names: for the custom call target of a Pallas kernel, the pattern that finds the name
        of the kernel in the op_name, or else in the backend config.
      memory_spaces: names of XLA's memory spaces by color; see `xlapipe.plans.memory_spaces`.
      default_memory_space: the name of all other colors.
      callback_calls: prefixes of the custom call targets that call back into the host's Python.
      calls_finished_on_device: prefixes of the custom call targets whose workspace and code XLA
        gets from a library on the device, and leaves out where no device is attached.
      untuned_call: a pattern in the backend config of a call whose algorithm, and so its workspace,
        comes from autotune results alone; None if the platform has no such calls.
      convolution_library: what computes convolutions, for messages.
      convolution_options: XLA options without which a convolution has no default where autotune
        results are missing: XLA computes it by its own kernel, not by the device's library.
      may_sort_by_library: whether XLA may give large sorts to a library, where it has the device.
      load_autotune_flag, dump_autotune_flag: XLA flags that read and write autotune results; None
        without autotuning.
      results_folder_option: XLA option for a folder with a file of each autotune result.
      complete_autotune_option: XLA option that makes a compile fail if a result is missing.
      topology_arguments: the arguments of `jax.experimental.topologies.get_topology_desc`, from
        the target's config text and a topology in the platform's own form; None for one device.
      device_figures: from the target's config text.
      thunk_holders: thunk kinds that are always followed by thunks nested in them.
      child_environment: variables that the compiling process needs.
      flag_variables: variables of the environment that hold flags of its compiler.
      plan_only_options: XLA options that save time if only the plan is wanted, without changing it.
      cuda_folder_option: the XLA option for the folder of CUDA's files; None if its ptxas does not
        assemble kernels.
      plan_needs_texts: whether the files that a plan is read from are dumped only with texts.
      plugin: the Python module in whose folder XLA's plugin is; None if it needs no changes.
      plugins_with_stand_ins: packages in whose folders plugins are whose libraries are replaced by
        `xlapipe.compile.xla_patches.stand_ins` if they are not installed; that of XLA first.
      refuses_without_device: whether jax's plugin does not register where it counts no device.
      memory_limit: bytes that XLA's allocator takes on a device, from the device's memory and the
        process's share of it; XLA recomputes values to stay below. None if it is not known.
      pads_arrays: whether arrays are padded to tiles, so that a value can need more bytes than its
        elements.
      has_chip_memory: whether XLA places values in the chip's own memory, so that they move between
        it and device memory.
      chip_spaces: colors of memories on the chip; reads and writes there move no bytes
        of device memory.
      is_scheduled: whether the compiler orders all that a device does, so that no host launches
        kernels; the schedule is then the timeline.
      temp_is_a_sum: whether the temp of memory_analysis() is the sum of temp allocations.
      refuses_after_planning: whether XLA writes the plan of a program before it refuses the program
        for lack of memory.
      code_takes_memory: whether the program's code is in device memory, and in memory_analysis().
      builds_executables: whether an executable that is built without the device runs on it.
      predicts_times: whether a time is predicted from these speeds and times that were measured.
      refused_kernels: parts of the modules that define the compiler parameters of Pallas kernels
        which do not compile for it.
      has_chip_grid: whether a topology is a grid of chips, all of which are connected directly,
        whichever host they belong to; otherwise it is hosts and devices of each.
      memory_slop_option, overlap_option: XLA options that lower the memory limit (in percent), and
        that keep values alive so that transfers overlap, if any.
      refusing_compiler: what refuses a target, and what to do then, for messages.
    """

    name: str
    vendor: str
    recorded_packages: tuple[str, ...]
    compiler_packages: tuple[str, ...]
    dump_files: tuple[DumpFile, ...]
    gemm_policies: Mapping[str, Mapping[str, bool]]
    gemm_calls: tuple[tuple[str, str], ...]
    gemm_fusion_kinds: tuple[tuple[str, str], ...]
    kernel_names: Mapping[str, re.Pattern[str]]
    topology_arguments: Callable[[str, str | None], Mapping[str, Any]]
    device_figures: Callable[[str], DeviceFigures]
    memory_spaces: Mapping[int, str]
    default_memory_space: str
    noun: str = "GPU"
    own_compiler: str = ""
    config_name: str | None = None
    library_names: Mapping[str, str] = field(default_factory=dict)
    callback_calls: tuple[str, ...] = ()
    calls_finished_on_device: tuple[str, ...] = ()
    untuned_call: re.Pattern[str] | None = None
    convolution_library: str = "cuDNN"
    convolution_options: Mapping[str, bool] = field(default_factory=dict)
    may_sort_by_library: bool = False
    load_autotune_flag: str | None = None
    dump_autotune_flag: str | None = None
    results_folder_option: str | None = None
    complete_autotune_option: str | None = None
    thunk_holders: frozenset[str] = frozenset()
    child_environment: Mapping[str, str] = field(default_factory=dict)
    flag_variables: tuple[str, ...] = ("XLA_FLAGS",)
    plan_only_options: Mapping[str, int] = field(default_factory=dict)
    cuda_folder_option: str | None = None
    plan_needs_texts: bool = False
    plugin: str | None = None
    plugins_with_stand_ins: tuple[str, ...] = ()
    refuses_without_device: bool = False
    memory_limit: Callable[[int, float], int] | None = None
    pads_arrays: bool = False
    has_chip_memory: bool = False
    chip_spaces: frozenset[int] = frozenset()
    is_scheduled: bool = False
    temp_is_a_sum: bool = True
    refuses_after_planning: bool = False
    code_takes_memory: bool = False
    builds_executables: bool = True
    predicts_times: bool = True
    refused_kernels: tuple[str, ...] = ()
    has_chip_grid: bool = False
    memory_slop_option: str | None = None
    overlap_option: str | None = None
    refusing_compiler: tuple[str, str] = (
        "this jaxlib",
        "fix: write the config with this jaxlib, by `xlapipe device capture`",
    )

    @property
    def has_autotuning(self) -> bool:
        """Whether plans depend on autotune results of the device."""
        return self.load_autotune_flag is not None

    @property
    def runs_gpu_kernels(self) -> bool:
        """Whether Pallas kernels by Triton compile for it."""
        return "triton" not in self.refused_kernels

    def dump_file(self, part: Part) -> DumpFile:
        """The file that contains `part`.

        Raises:
          KeyError: the platform has no such file.
        """
        return {file.part: file for file in self.dump_files}[part]
