"""What the models' own commands share: errors and exit codes. Imports nothing that is slow."""

import json
import os
import sys
from collections.abc import Callable

from xlapipe import XlapipeError


def run_command(run: Callable[[], int], *, program: str, json_output: bool) -> int:
    """Runs a command; prints an XlapipeError and returns exit code 2 for it."""
    try:
        code = run()
        sys.stdout.flush()
    except XlapipeError as error:
        if json_output:
            sys.stdout.write(f"{json.dumps({'error': str(error)})}\n")
        sys.stderr.write(f"{program}: error: {error}\n")
        return 2
    except BrokenPipeError:
        # The reader of stdout has ended (`| head`): flushing it at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted\n")
        return 130
    return code
