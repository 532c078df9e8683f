"""The steps of executables that were built in advance and are being loaded. Imports no jax."""

from models.qwen3.generation.compiled_steps import CompiledGeneration, StepDevice
from models.qwen3.generation.loaded_device import LoadedDevice
from models.qwen3.generation.prebuilt_index import PrebuiltExecutables
from models.qwen3.generation.prebuilt_step import prebuilt_step
from models.qwen3.generation.start_loading import LoadingSteps
from models.qwen3.generation.step_arrays import decode_arguments, prompt_arguments, step_outputs


def load_prebuilt(
    prebuilt: PrebuiltExecutables, longest: int, steps: LoadingSteps
) -> tuple[CompiledGeneration, StepDevice]:
    """The steps for prompts of up to `longest` tokens, and the device that they are loaded on.

    `CompiledGeneration.check_loaded` reports errors of loading.

    Args:
      steps: the result of `start_loading` for the same prompts.

    Raises:
      XlapipeError: an executable is for another model.
    """
    sizes, config = prebuilt.sizes_for(longest), prebuilt.config
    prompts = prebuilt_step(
        steps.prompts, prompt_arguments(config, sizes), step_outputs(config, sizes, steps=1)
    )
    decode = prebuilt_step(
        steps.decode,
        decode_arguments(config, sizes),
        step_outputs(config, sizes, steps=sizes.steps),
    )
    implementations = prebuilt.implementations_for(longest)
    compiled = CompiledGeneration(sizes, prompts, decode, implementations)
    return compiled, LoadedDevice(steps.prompts)
