"""Text generation: the decode loop, sampling, and executables that are built in advance.

generator.py            from prompts to tokens, with compiled steps
decode_loop.py          the two steps: prompts, and a loop of decode steps
sampling.py             the next token from logits
sampling_settings.py    settings of sampling (no jax)
static_sizes.py         sizes that the steps are compiled for (no jax)
state.py                the state of a batch (no jax)
compiled_steps.py       both steps compiled, in this process or in advance (no jax)
abstract_arguments.py   what they are compiled for, as pytrees
compile_generation.py   compiles them in this process
jax_device.py           a device of jax, which runs the steps
device_memory.py        whether a plan fits the device
build_prebuilt.py       builds a folder of executables
build_locks.py          autotune locks for such a build
prebuilt_index.py       the index of such a folder (no jax)
start_loading.py        starts to load such executables onto the GPU (no jax, no numpy)
load_prebuilt.py        their steps, whose arrays are those of the model
"""
