"""Imports jax and the libraries on it before any model.

The import hook of tests/conftest.py gives the modules of `models` a bytecode cache separate from
everyone's, and so, by the way it does that, each module that is first imported from within one: jax
would be compiled from source.
"""

import optax  # noqa: F401
