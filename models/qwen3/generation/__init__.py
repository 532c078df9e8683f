"""Text generation: the decode loop, sampling, and executables that are built in advance.

generator.py            from prompts to tokens, with compiled steps
decode_loop.py          the two steps: prompts, and a loop of decode steps
sampling.py             the next token from logits
sampling_settings.py    settings of sampling (no jax)
static_sizes.py         sizes that the steps are compiled for (no jax)
state.py                the state of a batch
compiled_steps.py       both steps compiled, in this process or in advance
compile_generation.py   compiles them in this process
device_memory.py        whether a plan fits the device
build_prebuilt.py       builds a folder of executables
build_locks.py          autotune locks for such a build
prebuilt_index.py       the index of such a folder (no jax)
load_prebuilt.py        loads such executables onto the GPU
"""
