"""The pytest plugin and its parts; the fixture `xlapipe_plan` is a `session.PlansOfTest`."""
