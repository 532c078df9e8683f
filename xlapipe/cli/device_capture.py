"""Write the attached GPU's target config, with the device and driver it comes from.

xlapipe device capture --out gpu.txtpb
    the attached GPU's configuration
xlapipe dump step:workload --target-config gpu.txtpb
    a compile for it elsewhere
"""

import argparse

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json

OPTIONS: Options = {"--out FILE": "default: print it"}


def run(options: argparse.Namespace) -> int:
    from xlapipe.files.writing import write_files
    from xlapipe.run.capture_target import captured_target

    captured = captured_target()
    if options.out is not None:
        write_files({options.out: captured.text().encode()})
    if options.json:
        print_json(captured)
    elif options.out is None:
        print(captured.text(), end="")
    else:
        print(f"{options.out}: {captured.device}, driver {captured.driver or 'unknown'}")
    return 0
