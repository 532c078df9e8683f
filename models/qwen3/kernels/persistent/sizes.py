"""Static sizes of the persistent kernel of Qwen3-0.6B. Imports no jax."""

from models.qwen3.config import Qwen3Config

# All blocks run at once, one on each multiprocessor; matrices are divided evenly over them.
BLOCKS = 128
# Warps of a block that compute; one more fetches weights, and one publishes results.
COMPUTING_WARPS = 8
# The model's sizes, which the division of work assumes: those of Qwen3-0.6B.
HIDDEN, QUERIES, KV_HEADS, HEAD, INTERMEDIATE = 1024, 2048, 8, 128, 3072
GROUP = QUERIES // HEAD // KV_HEADS
# More were not run. Shared memory has a table of each layer's arrays.
MAX_LAYERS = 28
# Blocks among which a key/value head's slots are divided.
PARTS = BLOCKS // KV_HEADS
# Bytes that are fetched at once, and slots of the cache of this size.
CHUNK = 8192
CHUNK_SLOTS = CHUNK // (2 * HEAD)
# Chunks of a block's rows of each matrix.
QKV_CHUNKS, O_CHUNKS, GATE_UP_CHUNKS, DOWN_CHUNKS = 8, 4, 12, 6
# Copies of a vector's packets, each of which is read by a different group of blocks. A power of
# two, at most 4.
COPIES = 4
# Bytes of the packets of a vector, of queries (and of keys with values), and of parts of attention.
VECTOR_PACKETS = 8192
QUERY_PACKETS = 8192
PART_PACKETS = KV_HEADS * PARTS * PARTS * 16 * 8
EXCHANGE_BYTES = 4 * VECTOR_PACKETS * COPIES + 2 * QUERY_PACKETS + PART_PACKETS


def has_small_sizes(config: Qwen3Config) -> bool:
    """Whether the model has the sizes of this kernel."""
    return config.num_hidden_layers <= MAX_LAYERS and (
        config.hidden_size,
        config.q_size,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
    ) == (HIDDEN, QUERIES, KV_HEADS, HEAD, INTERMEDIATE)
