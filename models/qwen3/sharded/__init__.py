"""Qwen3 over many devices: a training step and a decode step.

    layout.py           weights: shapes, which mesh axis splits which axis, bytes (no jax)
    collectives.py      gathering a weight where it is used
    forward.py          what one device computes: embedding, a layer, all layers
    loss.py             cross-entropy without logits of all tokens
    train.py            the training step: AdamW on float32 shards
    serve.py            the decode step
    stacked.py          weights of `models.qwen3.modules.model` in the layout used here
    workloads.py        what `xlapipe dump` and `xlapipe fit` compile
    expectations.py     what must hold of the plans (no jax)

Every function runs inside `jax.shard_map`, and so says itself which bytes cross between devices:
the plan holds the collectives that are written here, and no gather that a partitioner thought of.
The modules of `models.qwen3.modules.model` are not used, their functions are (`rms_norm`, `rotate`,
`grouped_query_attention`). Their fused projections stack the rows of queries, keys and values, or
of gate and up, one behind the other: cut into shards, the first shards would hold queries alone.
Here such weights have an axis for what is fused, and are cut along heads or along F.

Axis letters as in `models.qwen3`, and L layers, P = G + 2: of one key/value head its queries, its
key and its value. Axes of a shard have the letter of the whole, or, where a function has to do
with both, the small letter.
"""
