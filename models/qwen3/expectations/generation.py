"""The programs of generation: steps that sample their tokens on the device."""

from dataclasses import replace

from models.qwen3.argument_bytes import FLOAT32, INT32, weight_bytes
from models.qwen3.config import Qwen3Config
from models.qwen3.expectations.bounds import CUBLAS_ROW_MULTIPLE, SMALL_BYTES
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
    TrafficAtMost,
)


def generate(
    config: Qwen3Config,
    *,
    batch: int,
    cache_length: int,
    steps: int,
    candidates: int | None,
    kernels: bool = False,
    persistent: bool = False,
) -> tuple[Expectation, ...]:
    """A loop of `steps` decode steps with sampling; each step is as in `decode`."""
    step = decode(
        config, batch=batch, cache_length=cache_length, kernels=kernels, persistent=persistent
    )
    step = tuple(
        _of_all_steps(expectation, steps) if isinstance(expectation, TrafficAtMost) else expectation
        for expectation in _with_sampling(step, config, batch=batch, candidates=candidates)
    )
    if persistent and candidates == 1:
        step = (*step, _reads_weights_once(config, steps=steps))
    # XLA removes loops of one trip.
    if steps == 1:
        return step
    in_loop = tuple(
        NoCopyInLoopAbove(expectation.limit_bytes, because="no trip copies a cache leaf")
        for expectation in step
        if isinstance(expectation, NoCopyAbove)
    )
    loop = LoopOfTrips(steps, because="one trip per token, without synchronising with the host")
    return (*step, *in_loop, loop)


def _of_all_steps(step: TrafficAtMost, steps: int) -> TrafficAtMost:
    """The traffic of a loop: every trip reads the weights and the cache."""
    return replace(
        step, limit_bytes=steps * step.limit_bytes, because=f"in each step: {step.because}"
    )


def _reads_weights_once(config: Qwen3Config, *, steps: int) -> TrafficAtMost:
    """The output head reads its weights once per step, and the layers as the workload states."""
    weights = weight_bytes(config)
    return TrafficAtMost(
        steps * (weights + weights // 100), because="weights once per step; 1 % on top"
    )


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
    """Prompts of up to `length` tokens, and the first new token of each; as in `prefill`."""
    step = prefill(
        config,
        batch=batch,
        length=length,
        cache_length=cache_length,
        kernels=kernels,
        hopper=hopper,
    )
    return _with_sampling(step, config, batch=batch, candidates=candidates)


def _with_sampling(
    step: tuple[Expectation, ...], config: Qwen3Config, *, batch: int, candidates: int | None
) -> tuple[Expectation, ...]:
    """The step's expectations, changed for a program that samples tokens and returns no logits."""
    logits = batch * config.vocab_size * FLOAT32
    # A sort needs values and ids, before and after, and scratch memory of the same size as those
    # two; sampling with temperature only needs a second array of logits.
    temp = logits * {1: 1, None: 2}.get(candidates, 6) + SMALL_BYTES
    # Ids that end a sequence; seed, temperature, top-k, top-p, and the sequences' indices.
    state = (MAX_EOS + (0 if candidates == 1 else 4 + batch)) * INT32
    # XLA copies to take the first elements of sorted arrays, and to remove rows of padding.
    unpadded = batch == 1 or batch % CUBLAS_ROW_MULTIPLE == 0
    copied = 0 if candidates == 1 and unpadded else logits
    changed: list[Expectation] = []
    for expectation in step:
        because = expectation.because
        match expectation:
            case ParameterBytes(total_bytes=total):
                changed.append(
                    replace(expectation, total_bytes=total + state, because=f"{because}, state")
                )
            case TempAtMost(limit_bytes=limit):
                because = f"{because}, logits and sampling"
                changed.append(replace(expectation, limit_bytes=limit + temp, because=because))
            case TrafficAtMost(limit_bytes=limit):
                # What is temporary is written once and read once.
                because = f"{because}, logits and sampling"
                changed.append(replace(expectation, limit_bytes=limit + 2 * temp, because=because))
            case NoCopyAbove(limit_bytes=limit):
                changed.append(replace(expectation, limit_bytes=max(limit, copied)))
            case AllocationOf(name="out['logits']"):
                continue
            case _:
                changed.append(expectation)
    return (*changed, Aliased("state", because="the state is written in place"))
