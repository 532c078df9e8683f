"""How the tests of this folder use jax in their own process."""

import os

# Numerics are tested at small sizes, where XLA's CPU backend takes longer to optimise a program
# than the program takes to run. Compiling children do not receive this variable.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"

# The import hook of tests/conftest.py gives the modules of `models` a bytecode cache separate from
# everyone's, and so, by the way it does that, each module that is first imported from within one:
# jax would be compiled from source.
import optax  # noqa: F401
