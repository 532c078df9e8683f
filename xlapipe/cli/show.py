"""Show the plan of a dump, on one screen.

xlapipe show hlo_dumps/step/h200-auto-jax0.12.0.1
    one screen
xlapipe show DIR gpt.py:63 fusion.12
    all about a line and a value
"""

import argparse
import os

from xlapipe.cli.options import NETWORK, PATH_HELP, Options, hidden, target_names
from xlapipe.cli.output import print_json, print_lines, print_text, screen_width
from xlapipe.errors import XlapipeError

OPTIONS: Options = {
    "path PATH": PATH_HELP,
    "names NAME": {
        "nargs": "*",
        "default": (),
        "help": "what a source line, a value or an argument holds, who makes it, until when it is "
        "kept: gpt.py:63, fusion.12, params; or the bytes and time of a module: Attention",
    },
    "--allocations": "totals, and allocations with their contents",
    "--donation": "aliases, and the outcome of each donation",
    "--gemms": "matrix products by backend, shapes and source line",
    "--collectives": "what devices exchange, and what is computed meanwhile",
    "--time": "what the kernels must cost and are predicted to take; measured times if the dump "
    "has a time_record.json",
    "--all": "every part of the plan but --time",
    "--module NAME": "of a folder with many modules: the one whose file's name contains NAME, the "
    "largest of several; of torch Inductor's graphs, those",
    "--why KERNEL": "what the predicted time of a kernel is made of",
    "--calibration FILE": "predict times by a file of `xlapipe device calibrate`; default: that "
    "of the GPU in xlapipe",
    **hidden(
        {
            "--trips N": "",
            "--host FACTOR": {"default": 1.0},
        }
    ),
    "--trace FILE": "write the predicted timeline as a Chrome trace, for Perfetto",
    "--target NAME": {
        "type": target_names,
        "help": "with --time: a GPU of `xlapipe targets`; default: the dump's",
    },
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.dump.readers.files import modules_in
    from xlapipe.inductor.open_path import is_inductor_dump
    from xlapipe.report.records import row_of
    from xlapipe.report.subjects import ShowOptions, open_subject
    from xlapipe.time.prediction_settings import PredictionSettings

    if options.json and options.names:
        raise XlapipeError(
            "show: names are answered in text, and --json prints the whole plan; fix: leave out "
            "one of them"
        )
    path = options.path
    if options.module is not None and not is_inductor_dump(path):
        from xlapipe.report.module_list import module_named

        path = module_named(path, options.module)
    elif not options.json and len(modules := modules_in(path)) > 1:
        from xlapipe.report.module_list import module_lines

        for line in module_lines(path, modules, width=screen_width()):
            print_text(line)
        return 0
    # The threads that numpy starts take longer than the small systems that it solves here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    calibration = None
    if options.calibration is not None:
        from xlapipe.time.predict.calibration import read_calibration

        calibration = read_calibration(options.calibration)
    settings = PredictionSettings(
        target=options.target,
        calibration=calibration,
        unknown_trips=options.trips,
        host=options.host,
    )
    subject = open_subject(path, settings)
    if options.trace is not None:
        from xlapipe.files.writing import write_files

        trace = subject.trace()
        write_files({options.trace: trace})
        if not options.json:
            print_text(f"{options.trace}: {len(trace):,} B")
            return 0
    shown = row_of(
        ShowOptions,
        options,
        everything=options.all,
        kernel=options.why,
        names=tuple(options.names),
        width=screen_width(),
    )
    if options.json and options.why is None:
        print_json(subject.figures(shown))
    else:
        print_lines(subject.lines(shown))
    return 0
