"""What programs and notebooks call: `xlapipe.plan`, `read`, `build`, `load`, `choose`, `target`.

- `planner`: `plan` of steps that this process lowers, also for the pytest fixture;
- `compile_step`: the `plan` of programs, and `build`;
- `step_plan`: `read`, and what `plan` and it return: a plan with the questions that people ask;
- `loaded_step`: `load`, an executable on the attached GPUs;
- `choose_rows`: `choose`;
- `shown_plan`, `graphs_plan`: what plans of every compiler offer, and those of torch Inductor;
- `testing`: the pytest plugin, with the fixture `xlapipe_plan` and goldens;
- `plan_arguments`, `answer`: shared by these and the pytest fixture; `target`.

Programs that use xlapipe need nothing below this package; the repository's models show it.
"""
