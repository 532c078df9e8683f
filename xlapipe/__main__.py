"""`python -m xlapipe`: the command line."""

from xlapipe.cli import command_line

command_line()
