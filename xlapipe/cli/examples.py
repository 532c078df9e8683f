"""Two examples for the `--help` of each command: the command, and what it does."""

EXAMPLES: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "list": (
        ("xlapipe list", "names of workloads in the current folder's project"),
        ("xlapipe list --json", "the same for programs"),
    ),
    "targets": (
        ("xlapipe targets", "GPUs and TPUs, their memory and bandwidth"),
        ("xlapipe targets --json", "the same for programs"),
    ),
    "doctor": (
        ("xlapipe doctor", "what is missing for compiling, and the command that installs it"),
        ("xlapipe doctor --json", "the same for programs"),
    ),
    "dump": (
        ("xlapipe dump step:workload", "compile for an H200, into hlo_dumps/"),
        ("xlapipe dump 'step:workload(batch=64)' --target h100_sxm --out /tmp/dumps", ""),
    ),
    "build": (
        ("xlapipe build step:workload --out built", "an executable for an H200"),
        ("xlapipe build step:workload --out built --target h100_sxm", ""),
    ),
    "fit": (
        ("xlapipe fit step:workload --vary batch=8,16,32,64", "which batches fit, and their time"),
        ("xlapipe fit step:workload --cliff batch", "from which batch on XLA computes again"),
    ),
    "choose": (
        (
            "xlapipe choose step:workload --vary batch=8,16,32 --maximise batch",
            "which batch takes least time per item on an H200, among those that fit",
        ),
        ("xlapipe choose step:workload --remat --target h100_sxm,h200", "which policy to write"),
    ),
    "saved": (
        ("xlapipe saved step:workload", "what is kept for the backward pass, most bytes first"),
        ("xlapipe saved step:workload --free 2000000000", "the cheapest values to compute again"),
    ),
    "advise": (
        ("xlapipe advise step:workload", "what would save memory, by bytes"),
        ("xlapipe advise 'step:workload(batch=64)' --target h100_sxm", "for another GPU"),
    ),
    "run": (
        ("xlapipe run built", "run it on random inputs, and compare planned with measured memory"),
        ("xlapipe run built --profile", "time each kernel"),
    ),
    "launch": (
        ("xlapipe launch --processes 4 -- python train.py", "one process per GPU"),
        ("xlapipe launch --processes 2 -- xlapipe run built", ""),
    ),
    "capture": (
        ("xlapipe target capture --out gpu.txtpb", "the attached GPU's configuration"),
        ("xlapipe dump step:workload --target-config gpu.txtpb", "a compile for it elsewhere"),
    ),
    "add": (
        ("xlapipe lock add hlo_dumps/*/*/autotune_lock.json", "the locks of your goldens"),
        ("xlapipe dump step", "a plan that uses them"),
    ),
    "known": (
        ("xlapipe lock known", "for which GPUs and versions a lock can be predicted"),
        ("xlapipe lock known --json", "with the names of the programs"),
    ),
    "calibrate": (
        ("xlapipe calibrate --target attached --out gpu.json", "in up to ten minutes"),
        ("xlapipe show DIR --time --calibration gpu.json", "predict with it"),
    ),
    "show": (
        ("xlapipe show hlo_dumps/step/h200-auto-jax0.12.0.1", "one screen"),
        ("xlapipe show DIR gpt.py:63 fusion.12", "all about a line and a value"),
    ),
    "explain": (
        ("xlapipe explain run.log", "which allocation failed, and why"),
        ("python train.py 2>&1 | xlapipe explain --workload step:workload", "and what helps"),
    ),
    "report": (
        ("xlapipe report DIR --out report.html", "one offline page"),
        ("xlapipe report BEFORE AFTER", "two plans and their difference"),
    ),
    "check": (
        ("xlapipe check step:workload", "compile, and check its expectations"),
        ("xlapipe check hlo_dumps/*/*", "check dumps, without jax"),
    ),
    "diff": (
        ("xlapipe diff BEFORE AFTER", "what changed, and what it costs"),
        ("xlapipe diff --workload step:workload --versions 0.10.2,0.11.2", ""),
    ),
    "bisect": (
        ("xlapipe bisect step:workload --versions 0.10.0..0.11.2", "the first worse version"),
        ("xlapipe bisect step:workload --options xla_gpu_enable_triton_gemm=false", ""),
    ),
    "comment": (
        ("xlapipe comment before/hlo_dumps after/hlo_dumps", "Markdown for a pull request"),
        ("xlapipe comment before after --link https://example.org/report.html", ""),
    ),
    "completion": (
        ('eval "$(xlapipe completion bash)"', "in ~/.bashrc; for zsh in ~/.zshrc"),
        ("xlapipe completion fish | source", "in fish"),
    ),
}
