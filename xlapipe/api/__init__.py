"""The Python front: `xlapipe.plan`, `read`, `build` and `load`.

- `planner`: `plan`, also behind the pytest fixture: steps that this process lowers;
- `compile_step`: the `plan` of programs, and `build`;
- `step_plan`: what `plan` and `read` return: a plan with the questions that people ask about it;
- `read_dump`: `read`;
- `loaded_step`: `load`, an executable on the attached GPUs;
- `find_target`: `target`;
- `plan_arguments`, `answer`: shared by these and the pytest fixture.

Programs that use xlapipe need nothing below this package; the repository's models show it.
"""
