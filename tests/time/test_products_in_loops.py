"""Products that XLA's loop emitter computes, as it does of complex numbers."""

import pytest

from tests.time.small_work import work_of_text


@pytest.mark.parametrize(("terms", "wait"), [(3, False), (32, False), (1247, True)])
def test_a_thread_adds_the_terms_of_a_long_one_one_after_another(terms: int, wait: bool) -> None:
    left, right = f"c64[513,16,{terms}]{{2,1,0}}", f"c64[513,{terms},8]{{2,1,0}}"
    dims = "lhs_batch_dims={0}, rhs_batch_dims={0}, "
    dims += "lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    text = f"""HloModule small, is_scheduled=true
fused {{
  x = {left} parameter(0)
  y = {right} parameter(1)
  ROOT z = c64[513,16,8]{{2,1,0}} dot(x, y), {dims}
}}
ENTRY main {{
  x = {left} parameter(0)
  y = {right} parameter(1)
  ROOT f = c64[513,16,8]{{2,1,0}} fusion(x, y), kind=kLoop, calls=fused
}}
"""
    # An H100 took 171 µs for 1,247 terms: some 130 ns for each.
    seconds = work_of_text(text, 513, 128).chain_reads * 10e-9
    assert seconds == pytest.approx(terms * 130e-9 if wait else 0.0)
