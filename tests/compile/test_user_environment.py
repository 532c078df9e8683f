"""Variables of the user's environment: which reach the compiling child, and which are listed."""

import pytest

from xlapipe.compile.user_environment import kept_variables, left_out


@pytest.mark.parametrize(
    ("variables", "listed"),
    [
        ({"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"}, True),
        ({"XLA_FLAGS": "--xla_dump_to=/x --xla_force_host_platform_device_count=8"}, False),
        ({"LIBTPU_INIT_ARGS": "--xla_tpu_enable_x=true"}, True),
        ({"JAX_ENABLE_X64": "1"}, True),
        ({"JAX_DEFAULT_MATMUL_PRECISION": "highest"}, True),
        ({"JAX_NUMPY_DTYPE_PROMOTION": "strict"}, True),
        ({"JAX_PLATFORMS": "cpu", "JAX_LOG_COMPILES": "1"}, False),
        ({"JAX_COMPILATION_CACHE_DIR": "/x", "JAX_TRANSFER_GUARD": "disallow"}, False),
        ({"HOME": "/root"}, False),
    ],
)
def test_a_variable_that_could_change_a_program_is_listed(
    variables: dict[str, str], listed: bool
) -> None:
    lines = [f"{name}={value}" for name, value in variables.items()]
    assert tuple(left_out(variables, lowered_here=False)) == (tuple(lines) if listed else ())
    assert kept_variables(variables).keys() <= {"HOME", "JAX_NUM_CPU_DEVICES"}


def test_variables_of_jax_are_in_force_where_this_process_lowers() -> None:
    variables = {"JAX_ENABLE_X64": "1", "XLA_FLAGS": "--xla_gpu_x=1"}
    assert [*left_out(variables, lowered_here=True)] == ["XLA_FLAGS=--xla_gpu_x=1"]


def test_the_number_of_cpu_devices_reaches_the_child() -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_gpu_x=1"}
    assert kept_variables(flags) == {"JAX_NUM_CPU_DEVICES": "8"}
    assert kept_variables({**flags, "JAX_NUM_CPU_DEVICES": "4"}) == {"JAX_NUM_CPU_DEVICES": "4"}
