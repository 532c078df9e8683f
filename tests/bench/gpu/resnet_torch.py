"""A training step of ResNet-50 in compiled torch: bfloat16, channels last, one CUDA graph."""

from collections.abc import Callable

import torch
from resnet_cases import BATCH, CASE, CLASSES
from timing import print_timings, timed
from torch.nn.functional import cross_entropy
from torchvision.models import resnet50


def captured_step(batch: int) -> Callable[[int], None]:
    """Replays forward, backward and SGD with momentum on the same images; parameters in float32."""
    torch.manual_seed(0)
    model = resnet50(num_classes=CLASSES).cuda().to(memory_format=torch.channels_last)
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(compiled(images).float(), labels)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
        torch.cuda.synchronize()
        # cuDNN measures its algorithms when nothing else uses the GPU.
        torch.backends.cudnn.benchmark = True
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.reset_peak_memory_stats()
    with torch.cuda.graph(graph):
        step()
    return lambda _: graph.replay()


if __name__ == "__main__":
    call = captured_step(BATCH)
    variant = "torch.compile, bfloat16, channels last, CUDA graph"
    timing = timed(CASE, variant, call, lambda _: torch.cuda.synchronize(), calls=10, samples=5)
    print_timings(
        framework=f"torch {torch.__version__}",
        device=torch.cuda.get_device_name(),
        timings=[timing],
    )
