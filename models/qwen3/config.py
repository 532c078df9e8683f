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


QWEN3_0_6B = Qwen3Config(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
)

QWEN3_1_7B = Qwen3Config(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
)

QWEN3_4B = Qwen3Config(
    vocab_size=151936,
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
)

QWEN3_8B = Qwen3Config(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
)

QWEN3_14B = Qwen3Config(
    vocab_size=151936,
    hidden_size=5120,
    intermediate_size=17408,
    num_hidden_layers=40,
    num_attention_heads=40,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
)

QWEN3_32B = Qwen3Config(
    vocab_size=151936,
    hidden_size=5120,
    intermediate_size=25600,
    num_hidden_layers=64,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
)

# By the names that are arguments of workloads.
CONFIGS = {
    "0.6b": QWEN3_0_6B,
    "1.7b": QWEN3_1_7B,
    "4b": QWEN3_4B,
    "8b": QWEN3_8B,
    "14b": QWEN3_14B,
    "32b": QWEN3_32B,
}
