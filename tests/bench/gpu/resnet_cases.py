"""The case of the ResNet-50 comparison. The variable RESNET_BATCH chooses the batch."""

import os

BATCH = int(os.environ.get("RESNET_BATCH", "256"))
CLASSES = 100
CASE = f"ResNet-50 training step, N={BATCH}"
