"""The config of a Qwen3 dense model. Imports no jax, so that expectations do not need it."""

from dataclasses import dataclass

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class Qwen3Config:
    """Sizes and constants of a model, with the names of Hugging Face's `config.json`.

    Attributes:
      dtype: dtype of weights, activations and KV cache; norms, RoPE and softmax use float32.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    tie_word_embeddings: bool = True
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for RoPE, not {self.head_dim}")
        if self.dtype not in ITEMSIZE:
            raise ValueError(f"dtype must be one of {', '.join(ITEMSIZE)}, not {self.dtype!r}")

    @property
    def itemsize(self) -> int:
        """Bytes of one weight, activation or cache element."""
        return ITEMSIZE[self.dtype]

    @property
    def q_size(self) -> int:
        """Width of all query heads, N H."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads, or of all value heads, K H."""
        return self.num_key_value_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Rows of the fused qkv projection, (N + 2 K) H: queries, then keys, then values."""
        return self.q_size + 2 * self.kv_size

    @property
    def queries_per_kv_head(self) -> int:
        """G, the number of query heads that read one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    def cache_shape(self, *, batch: int, cache_length: int) -> tuple[int, int, int, int]:
        """Shape of one layer's keys, and of its values, in the contiguous cache: [B, K, S, H]."""
        return (batch, self.num_key_value_heads, cache_length, self.head_dim)


def _published(
    hidden_size: int, intermediate_size: int, layers: int, heads: int, *, tied: bool
) -> Qwen3Config:
    """A model of the family, whose models differ in these sizes alone."""
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
    )


QWEN3_0_6B = _published(1024, 3072, 28, 16, tied=True)
QWEN3_1_7B = _published(2048, 6144, 28, 16, tied=True)
QWEN3_4B = _published(2560, 9728, 36, 32, tied=True)
QWEN3_8B = _published(4096, 12288, 36, 32, tied=False)
QWEN3_14B = _published(5120, 17408, 40, 40, tied=False)
QWEN3_32B = _published(5120, 25600, 64, 64, tied=False)

# By the names that are arguments of workloads.
CONFIGS = {
    "0.6b": QWEN3_0_6B,
    "1.7b": QWEN3_1_7B,
    "4b": QWEN3_4B,
    "8b": QWEN3_8B,
    "14b": QWEN3_14B,
    "32b": QWEN3_32B,
}
