"""The programs of generation: steps whose tokens are drawn on the device."""

from dataclasses import replace

from models.qwen3.argument_bytes import FLOAT32, INT32
from models.qwen3.config import Qwen3Config
from models.qwen3.expectations.bounds import ROWS, SMALL_BYTES
from models.qwen3.expectations.steps import decode, prefill
from models.qwen3.generation.sampling_settings import MAX_EOS
from xlapipe.expect import (
    Aliased,
    AllocationOf,
    Expectation,
    LoopOfTrips,
    NoCopyAbove,
    NoCopyInLoopAbove,
    ParameterBytes,
    TempAtMost,
)


def generate(
    config: Qwen3Config,
    *,
    batch: int,
    cache_length: int,
    steps: int,
    candidates: int | None,
    kernels: bool = False,
) -> tuple[Expectation, ...]:
    """A loop of `steps` decode steps that draws their tokens: each is as `decode` expects."""
    held = decode(config, batch=batch, cache_length=cache_length, kernels=kernels)
    held = _drawing(held, config, batch=batch, candidates=candidates)
    in_loop = tuple(
        NoCopyInLoopAbove(each.limit_bytes, because="no trip copies a cache leaf")
        for each in held
        if isinstance(each, NoCopyAbove)
    )
    # A loop of one trip is none.
    loop = LoopOfTrips(steps, because="one trip for each token; the host is not asked")
    return (*held, *in_loop, loop) if steps > 1 else held


def prompts(
    config: Qwen3Config,
    *,
    batch: int,
    length: int,
    cache_length: int,
    candidates: int | None,
    kernels: bool = False,
    hopper: bool = False,
) -> tuple[Expectation, ...]:
    """Prompts of up to `length` tokens, and the first token behind each: as `prefill` expects."""
    held = prefill(
        config,
        batch=batch,
        length=length,
        cache_length=cache_length,
        kernels=kernels,
        hopper=hopper,
    )
    return _drawing(held, config, batch=batch, candidates=candidates)


def _drawing(
    held: tuple[Expectation, ...], config: Qwen3Config, *, batch: int, candidates: int | None
) -> tuple[Expectation, ...]:
    """What `held` comes to where tokens are drawn from the logits, which then do not come out."""
    logits = batch * config.vocab_size * FLOAT32
    # Ordering takes values and ids, each as they come and as they go, and the sort's own scratch
    # of as much again; drawing by temperature alone takes a second array of logits.
    temp = logits * {1: 1, None: 2}.get(candidates, 6) + SMALL_BYTES
    # Ids that end a sequence; seed, temperature, top-k, top-p, and the sequences' indices.
    state = (MAX_EOS + (0 if candidates == 1 else 4 + batch)) * INT32
    # Sorted arrays, and rows that cuBLAS was given on top, are cut off by copying.
    copied = 0 if candidates == 1 and (batch == 1 or batch % ROWS == 0) else logits
    changed: list[Expectation] = []
    for each in held:
        match each:
            case ParameterBytes():
                total = each.total_bytes + state
                changed.append(replace(each, total_bytes=total, because=f"{each.because}, state"))
            case TempAtMost():
                because = f"{each.because}, logits and drawing"
                changed.append(replace(each, limit_bytes=each.limit_bytes + temp, because=because))
            case NoCopyAbove():
                changed.append(replace(each, limit_bytes=max(each.limit_bytes, copied)))
            case AllocationOf(name="out['logits']"):
                continue
            case _:
                changed.append(each)
    return (*changed, Aliased("state", because="the state is written in place"))
