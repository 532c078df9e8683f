"""A compiled plan with the questions that a test asks about it."""

from collections.abc import Callable
from dataclasses import dataclass

from xlapipe.dumps.dump import Dump
from xlapipe.errors import XlapipeError
from xlapipe.expect import Aliased, Donated, Expectation, check_all
from xlapipe.plan import Plan, Totals
from xlapipe.plan.collectives import Collective
from xlapipe.plan.copies import Copy, find_copies
from xlapipe.plan.donation import Donation, donations
from xlapipe.plan.gemms import Gemm, GemmBackend
from xlapipe.plan.opcodes import COLLECTIVES
from xlapipe.plan.program import Program
from xlapipe.testing.answer import Answer, answer_of
from xlapipe.testing.goldens import Goldens

# The same set as the GEMM policy `cublas`: one library with several entry points.
_CUBLAS = (GemmBackend.CUBLAS, GemmBackend.CUBLASLT, GemmBackend.CUBLASLT_F8)


@dataclass(frozen=True, repr=False)
class PlanUnderTest:
    """What `xlapipe_plan` returns. Bytes are ints, on one device.

    Attributes:
      dump: all captured files.
      program: the plan with the pytree paths of arguments and outputs.
    """

    dump: Dump
    program: Program
    _expectations: tuple[Expectation, ...]
    _key: str
    _goldens: Goldens
    _record: Callable[[Answer], Answer]

    def __repr__(self) -> str:
        manifest = self.dump.manifest
        return f"<plan of {manifest.workload} for {manifest.target}>"

    @property
    def plan(self) -> Plan:
        """Allocations, aliases, thunks and optimised HLO."""
        return self.dump.plan

    @property
    def totals(self) -> Totals:
        """Sums of the allocations' sizes, by kind."""
        return self.plan.totals

    @property
    def total_allocation_bytes(self) -> int:
        """All allocations: what XLA allocates for one call."""
        return self.totals.total_allocation_bytes

    @property
    def temp_bytes(self) -> int:
        """The temporary memory, in which values share bytes over time."""
        return self.totals.temp_bytes

    @property
    def tuned(self) -> bool:
        """Whether a device's autotune results were used; if not, GEMM tiles are XLA's defaults."""
        return self.dump.manifest.tuned

    @property
    def donations(self) -> tuple[Donation, ...]:
        """The outcome of the donation of each donated leaf."""
        return donations(self.program)

    def aliases(self, name: str) -> Answer:
        """Whether every argument leaf named `name` is donated and aliased; see `Aliased`."""
        return self._answer(Aliased(name))

    def donated(self, name: str, *, copies_up_to_bytes: int = 0) -> Answer:
        """As `aliases`; also checks that no copy of half a leaf or more remains; see `Donated`.

        Args:
          copies_up_to_bytes: ignore copies of at most this size.
        """
        return self._answer(Donated(name, copies_up_to_bytes))

    def check(self, *expectations: Expectation) -> Answer:
        """Whether all of `expectations` hold; default: the expectations of the workload.

        Raises:
          XlapipeError: there are no expectations.
        """
        expectations = expectations or self._expectations
        if not expectations:
            raise XlapipeError(
                f"{self!r}: no expectations to check; fix: pass expectations of xlapipe.expect, or "
                "use a Workload that has some"
            )
        return self._answer(*expectations)

    def _answer(self, *expectations: Expectation) -> Answer:
        return self._record(answer_of(check_all(expectations, self.program)))

    def gemms(self, backend: str | None = None) -> tuple[Gemm, ...]:
        """Matrix products, of one backend if given; `cublas` includes cuBLASLt.

        Args:
          backend: a value of `GemmBackend`.

        Raises:
          XlapipeError: unknown backend.
        """
        if backend is None:
            return self.plan.gemms
        known = {member.value: (member,) for member in GemmBackend} | {"cublas": _CUBLAS}
        if backend not in known:
            raise XlapipeError(f"unknown gemm backend {backend!r}; known: {', '.join(known)}")
        return tuple(gemm for gemm in self.plan.gemms if gemm.backend in known[backend])

    def collectives(self, kind: str | None = None) -> tuple[Collective, ...]:
        """Collectives, of one kind if given.

        Args:
          kind: XLA's name, e.g. `all-gather`.

        Raises:
          XlapipeError: unknown kind, or a plan without an HLO module.
        """
        if kind is not None and kind not in COLLECTIVES:
            raise XlapipeError(
                f"unknown kind of collective {kind!r}; known: {', '.join(sorted(COLLECTIVES))}"
            )
        if self.plan.collectives is None:
            raise XlapipeError(f"{self!r}: without an HLO module its collectives are unknown")
        return tuple(
            collective for collective in self.plan.collectives if kind in (None, collective.kind)
        )

    def copies(self, above_bytes: int = 0) -> tuple[Copy, ...]:
        """Copies of more than `above_bytes`: values written by instructions that only move data."""
        return tuple(copy for copy in find_copies(self.plan) if copy.copied_bytes > above_bytes)

    def matches_golden(self) -> Answer:
        """Whether the plan equals the golden in `hlo_dumps/` next to the test file.

        Raises:
          DumpError: the golden is damaged, or was made by a newer xlapipe.
        """
        return self._record(self._goldens.matches(self.dump, self._key))
