"""Qwen3 over many devices: a training step.

    weight_layout.py    weights: shapes, the mesh axis that splits each axis, elements (no jax)
    gathered_weight.py  gathers a weight for its use
    forward.py          the forward pass on one device: embedding, a layer, all layers
    loss.py             cross-entropy without logits of all tokens
    train.py            the training step: AdamW on float32 shards
    workloads.py        the workloads that `xlapipe dump` and `xlapipe fit` compile
    expectations.py     expectations about the plans (no jax)

Every function runs inside `jax.shard_map` and states its collectives explicitly: the plan has the
collectives that are written here, and none that XLA's partitioner adds. This package uses functions
of `models.qwen3.modules` (`rms_norm`, `rotate`, `grouped_query_attention`), but not its modules:
their fused projections stack the rows of queries, keys and values, or of gate and up, so that the
first shards would have queries only. Here such weights have a separate axis for the fused parts,
and are split along heads or along F.

Axis letters are those of `models.qwen3`, and L layers, P = G + 2: queries, key and value of one
key/value head. Axes of a shard have the letter of the whole axis or, in functions with both, the
lower-case letter.
"""
