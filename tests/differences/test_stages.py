"""At which stage two compiles differ first, and differences of the HLO alone."""

from types import SimpleNamespace
from typing import cast

import pytest

from xlapipe.differences.stages import first_stage, hidden_change
from xlapipe.dump.xla_files import XlaFiles


def module(line: str, name: str = "m") -> str:
    return f"""HloModule {name}, entry_computation_layout={{(f32[8]{{0}})->f32[8]{{0}}}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0){line}
  ROOT %n = f32[8]{{0}} negate(%x)
}}
"""


def opened(
    before: str | None = module(""), after: str | None = module(""), plan: str | None = "[a]\n1\n"
) -> XlaFiles:
    parts = SimpleNamespace(hlo_before=before, hlo_after=after, plan_sections=plan)
    return cast(XlaFiles, parts)


@pytest.mark.parametrize(
    ("b", "stage"),
    [
        (opened(), None),
        (opened(before=module("", name="other")), None),
        (opened(before=module("").replace("%x", "%y").replace("(x:", "(y:")), None),
        (opened(after=module("").replace("%x", "%y").replace("(x:", "(y:")), None),
        (opened(before=module(", sharding={replicated}")), None),
        (opened(before=module(', sharding={devices=[2]<=[2] metadata={op_name="a}"}}')), None),
        (opened(before=module(', frontend_attributes={a="{\\"b}"}')), None),
        (
            opened(before=module(', sharding={replicated}, frontend_attributes={a="1"}')),
            None,
        ),
        (opened(before=module(", parameter_replication={true}")), "lowering"),
        (opened(before=module(", sharding={replicated}, other={1}")), "lowering"),
        (opened(before=module("").replace("negate", "tanh")), "lowering"),
        (opened(after=module("").replace("negate", "tanh")), "XLA's optimisation"),
        (opened(after=None), None),
        (opened(plan="[a]\n2\n"), "[a] of the plan"),
        (opened(plan=None), None),
        (opened(before=None), None),
    ],
)
def test_the_first_stage(b: XlaFiles, stage: str | None) -> None:
    for one, two in ((opened(), b), (b, opened())):
        found = first_stage(one, two, other_hlo=False)
        assert (found is None) if stage is None else (found or "").startswith(stage)


def test_modules_that_are_known_to_differ_are_not_compared() -> None:
    assert first_stage(opened(), opened(), other_hlo=True) == (
        "XLA's optimisation: the same module became different HLO"
    )
    assert first_stage(opened(before=None), opened(), other_hlo=True) is None


def test_the_first_line_in_which_modules_differ() -> None:
    one, two = module(""), module("").replace("negate", "tanh")
    change = hidden_change(opened(after=one), opened(after=two))
    assert change is not None
    assert ("negate" in change.a, "tanh" in change.b) == (True, True)
    assert not change.a.startswith(" ")
    assert hidden_change(opened(), opened()) is None
    assert hidden_change(opened(), opened(after=None)) is None
    assert hidden_change(opened(after=None), opened()) is None
    # The header holds the module's name, which is not compared.
    assert hidden_change(opened(), opened(after=module("", name="other"))) is None
