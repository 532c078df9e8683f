"""transformers' Qwen3, compiled by torch. Both must be installed on the GPU machine."""

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from qwen3_cases import CONFIG, DECODES, PREFILL, PREFILLS, PROMPT, SLOTS, Decode
from timing import Timing, print_timings, timed
from torch_timing import captured
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

VARIANT = "torch.compile, CUDA graph"


def random_model() -> Any:
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "num_key_value_heads head_dim rms_norm_eps tie_word_embeddings"
    )
    config = Qwen3Config(**{name: getattr(CONFIG, name) for name in names.split()})
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


def compiled(model: Any) -> Any:
    """The compiled model; discards what was compiled before.

    One compile serves all positions of a batch size, since they are tensors. This module captures
    the CUDA graph itself: `mode="reduce-overhead"` copies inputs that are written, or runs the step
    twice before it captures, which changes the cache's count of tokens.
    """
    torch.compiler.reset()
    return torch.compile(model, dynamic=False)


class FilledCache:
    """A cache of `SLOTS` slots with random keys and values, and its count of tokens."""

    def __init__(self, model: Any, batch: int) -> None:
        self.cache = StaticCache(config=model.config, max_cache_len=SLOTS)
        # The cache allocates its tensors for the first token.
        model(torch.zeros((batch, 1), dtype=torch.long, device="cuda"), past_key_values=self.cache)
        for layer in self.cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        self._counts = [layer.cumulative_length for layer in self.cache.layers]

    def rewind(self, position: int) -> None:
        """Sets the number of tokens to `position`, in place, in each layer's tensor."""
        torch._foreach_zero_(self._counts)
        torch._foreach_add_(self._counts, position)


class Decoding:
    """A CUDA graph that adds one greedy token to each sequence, with its token and position."""

    def __init__(self, model: Any, batch: int) -> None:
        step, self._filled = compiled(model), FilledCache(model, batch)
        self._token = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
        self._position = torch.zeros((1, 1), dtype=torch.long, device="cuda")

        def add_token() -> None:
            filled, position = self._filled.cache, self._position
            out = step(self._token, past_key_values=filled, position_ids=position)
            self._token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
            position.add_(1)

        self._graph = captured(add_token, lambda: self._rewind(SLOTS // 2))

    def _rewind(self, position: int) -> None:
        self._filled.rewind(position)
        self._token.zero_()
        self._position.fill_(position)

    def timing(self, case: Decode) -> Timing:
        def call(number: int) -> None:
            self._rewind(case.position)
            for _ in range(case.tokens):
                self._graph.replay()

        return timed(str(case), VARIANT, call, wait, parts=case.tokens)


def prefill(model: Any) -> Timing:
    step, filled = compiled(model), FilledCache(model, 1)
    ids = torch.randint(0, 1000, (1, PROMPT), device="cuda")
    positions = torch.arange(PROMPT, device="cuda")[None]

    def read() -> Any:
        return step(ids, past_key_values=filled.cache, position_ids=positions, logits_to_keep=1)

    graph = captured(read, lambda: filled.rewind(0))

    def call(number: int) -> None:
        filled.rewind(0)
        graph.replay()

    return timed(PREFILL, VARIANT, call, wait)


def wait(_: Any) -> None:
    torch.cuda.synchronize()


def timings(model: Any) -> Iterator[Timing]:
    if PREFILLS:
        yield prefill(model)
    for batch in dict.fromkeys(case.batch for case in DECODES):
        decoding = Decoding(model, batch)
        for case in DECODES:
            if case.batch == batch:
                yield decoding.timing(case)


if __name__ == "__main__":
    name = f"torch {torch.__version__}, transformers {transformers.__version__}"
    with torch.inference_mode():
        device = torch.cuda.get_device_name()
        print_timings(framework=name, device=device, timings=timings(random_model()))
