"""Qwen3 by transformers, compiled by torch. Both are on the GPU machine alone, no dependencies."""

from collections.abc import Iterator
from typing import Any

import torch
import torch._inductor.config
import transformers
from qwen3_cases import DECODES, PREFILL, PROMPT, SLOTS, Decode
from timing import Timing, print_timings, timed
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

from models.qwen3.config import QWEN3_0_6B

VARIANT = "torch.compile, reduce-overhead"


def random_model() -> Any:
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "num_key_value_heads head_dim rms_norm_eps tie_word_embeddings"
    )
    config = Qwen3Config(**{name: getattr(QWEN3_0_6B, name) for name in names.split()})
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


def compiled(model: Any) -> Any:
    """The model as torch makes it fastest; what was compiled before is forgotten.

    One compile does for all positions of a batch size: they come in tensors.
    """
    torch.compiler.reset()
    return torch.compile(model, mode="reduce-overhead", dynamic=False)


class FilledCache:
    """A cache of `SLOTS` slots with keys and values in all of them, and its count of tokens."""

    def __init__(self, model: Any, batch: int) -> None:
        self.cache = StaticCache(config=model.config, max_cache_len=SLOTS)
        # Its tensors come with the first token.
        model(torch.zeros((batch, 1), dtype=torch.long, device="cuda"), past_key_values=self.cache)
        for layer in self.cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        self._counts = [layer.cumulative_length for layer in self.cache.layers]

    def rewind(self, position: int) -> None:
        """As if it held `position` tokens. It counts in place, in a tensor of each layer."""
        torch._foreach_zero_(self._counts)
        torch._foreach_add_(self._counts, position)


def decode(case: Decode, filled: FilledCache, step: Any) -> Timing:
    first = torch.zeros((case.batch, 1), dtype=torch.long, device="cuda")
    # As many as there are tokens, each with an address of its own.
    places = range(case.position, case.position + case.tokens)
    positions = [torch.full((1, 1), place, device="cuda") for place in places]

    def call(number: int) -> Any:
        filled.rewind(case.position)
        token = first
        for position in positions:
            torch.compiler.cudagraph_mark_step_begin()
            out = step(token, past_key_values=filled.cache, position_ids=position)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        return token

    return timed(str(case), VARIANT, call, wait, parts=case.tokens)


def prefill(model: Any) -> Timing:
    step = compiled(model)
    filled = FilledCache(model, 1)
    ids = torch.randint(0, 1000, (1, PROMPT), device="cuda")
    positions = torch.arange(PROMPT, device="cuda")[None]

    def call(number: int) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        filled.rewind(0)
        return step(ids, past_key_values=filled.cache, position_ids=positions, logits_to_keep=1)

    return timed(PREFILL, VARIANT, call, wait)


def wait(_: Any) -> None:
    torch.cuda.synchronize()


def timings(model: Any) -> Iterator[Timing]:
    yield prefill(model)
    for batch in dict.fromkeys(case.batch for case in DECODES):
        step, filled = compiled(model), FilledCache(model, batch)
        for case in DECODES:
            if case.batch == batch:
                yield decode(case, filled, step)


if __name__ == "__main__":
    # The cache counts its tokens in a tensor of the graph: trees of graphs take that for reuse.
    torch._inductor.config.triton.cudagraph_trees = False
    name = f"torch {torch.__version__}, transformers {transformers.__version__}"
    with torch.inference_mode():
        found = timings(random_model())
        print_timings(framework=name, device=torch.cuda.get_device_name(), timings=found)
