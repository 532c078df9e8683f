"""The programs of torch's dumps `mlp`, `block` and `resnet18`, as torch modules."""

import torch
from torch import nn
from torch.nn import functional


class MLP(nn.Module):
    """Linear layers without bias, each with a ReLU."""

    def __init__(self, width: int = 1024, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x and the result: [batch, width]."""
        for layer in self.layers:
            x = functional.relu(layer(x))
        return x


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int = 512, heads: int = 8, hidden: int = 2048) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x and the result: [batch, time, width]."""
        batch, time, width = x.shape
        qkv = self.qkv(self.attention_norm(x))
        qkv = qkv.view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))
