"""The Python front: `xlapipe.plans`, `read`, `build` and `load`.

- `step_plan`: what `plan` and `read` return: a plan with the questions that people ask about it;
- `compile_step`: `plan` and `build`, which compile a step of this process or a registered one;
- `read_dump`: `read`;
- `loaded_step`: `load`, an executable on the attached GPU;
- `plan_arguments`, `answer`: shared with the pytest fixture.

Programs that use xlapipe need nothing below this package; the repository's models show it.
"""
