"""`python -m xlapipe.cli`, for environments where the command `xlapipe` is not on the path."""

from xlapipe.cli import command_line

if __name__ == "__main__":
    command_line()
