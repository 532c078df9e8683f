"""Qwen3 by transformers, compiled by torch. Both are on the GPU machine alone, no dependencies."""

import inspect
from typing import Any

import torch
import torch._inductor.config
import transformers
from qwen3_cases import DECODES, PREFILL, PROMPT, SLOTS, Decode
from timing import Timing, print_timings, timed
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

from models.qwen3.config import QWEN3_0_6B


def random_model() -> Any:
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "num_key_value_heads head_dim rms_norm_eps tie_word_embeddings"
    )
    config = Qwen3Config(**{name: getattr(QWEN3_0_6B, name) for name in names.split()})
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


def at(model: Any, positions: torch.Tensor) -> dict[str, torch.Tensor]:
    """How this version of transformers is told where the tokens stand."""
    told = {"position_ids": positions[None]}
    if "cache_position" in inspect.signature(model.forward).parameters:
        told["cache_position"] = positions
    return told


def decode(case: Decode, model: Any, compiled: Any) -> Timing:
    cache = StaticCache(config=model.config, max_cache_len=SLOTS)
    if case.position:
        ids = torch.randint(0, 1000, (case.batch, case.position), device="cuda")
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    first = torch.zeros((case.batch, 1), dtype=torch.long, device="cuda")

    def call(number: int) -> Any:
        token = first
        for position in range(case.position, case.position + case.tokens):
            torch.compiler.cudagraph_mark_step_begin()
            where = at(model, torch.tensor([position], device="cuda"))
            out = compiled(token, past_key_values=cache, use_cache=True, **where)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        return token

    def wait(_: Any) -> None:
        torch.cuda.synchronize()

    return timed(str(case), "torch.compile, reduce-overhead", call, wait, parts=case.tokens)


def prefill(model: Any, compiled: Any) -> Timing:
    ids = torch.randint(0, 1000, (1, PROMPT), device="cuda")
    cache = StaticCache(config=model.config, max_cache_len=SLOTS)
    where = at(model, torch.arange(PROMPT, device="cuda"))

    def call(number: int) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        cache.reset()
        return compiled(ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **where)

    return timed(
        PREFILL, "torch.compile, reduce-overhead", call, lambda _: torch.cuda.synchronize()
    )


if __name__ == "__main__":
    # The cache counts its tokens in a tensor of the graph: trees of graphs take that for reuse.
    torch._inductor.config.triton.cudagraph_trees = False
    qwen3 = random_model()
    timings = []
    with torch.inference_mode():
        for each in DECODES:
            torch.compiler.reset()
            step = torch.compile(qwen3, mode="reduce-overhead", dynamic=False)
            timings.append(decode(each, qwen3, step))
        torch.compiler.reset()
        timings.append(prefill(qwen3, torch.compile(qwen3, mode="reduce-overhead", dynamic=False)))
    name = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print_timings(framework=name, device=torch.cuda.get_device_name(), timings=timings)
