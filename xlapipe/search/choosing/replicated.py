"""Leaves that every device of a mesh's axis holds whole, and rows that shard them over it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from xlapipe.plans.donatable import argument_name
from xlapipe.plans.labels import Labels
from xlapipe.plans.occupancy import Occupancy
from xlapipe.plans.program import Program, Spec
from xlapipe.plans.purposes import Purpose, Uses
from xlapipe.report.units import rounded
from xlapipe.search.candidate import StepChange

_MOST = 2
# Groups of a smaller share of the plan are not worth a compile.
_LEAST_SHARE = 0.01
_PRINTED = 8


@dataclass
class Replicated:
    """Leaves that one axis does not split, and that it can.

    Attributes:
      name: weights, optimizer state, or an argument's name.
      saved_bytes: of each device, if they are sharded.
      specs: to shard them, by path.
      carried: the outputs that replace arguments.
    """

    name: str
    axis: str
    size: int
    saved_bytes: int = 0
    specs: dict[str, Spec] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)

    @property
    def change(self) -> StepChange:
        text = (
            f"shard {self.name} over {self.axis!r}, {self.size} devices: "
            f"{rounded(self.saved_bytes)} less of its leaves"
        )
        paths = defaultdict(list)
        for path, spec in self.specs.items():
            paths[spec].append(path)
        lines = []
        for spec, own in paths.items():
            more = f" and {len(own) - _PRINTED} more" if len(own) > _PRINTED else ""
            lines.append(f"# {', '.join(own[:_PRINTED])}{more}: PartitionSpec{spec!r}\n")
        code = "# as in_shardings, and as out_shardings of what is returned for them\n"
        arguments = {"specs": self.specs, "carried": self.carried}
        return StepChange(text, code + "".join(lines), arguments=arguments)


def replicated(program: Program) -> Iterator[Replicated]:
    """The groups of leaves of which most bytes are saved by sharding them."""
    mesh, call = program.facts.mesh or {}, program.facts.call
    carried = call.carried if call is not None else {}
    occupancy = Occupancy(program.plan)
    uses = Uses(occupancy, Labels(program))
    purposes = {
        held.allocation.parameter_number: uses.of(held).purpose for held in occupancy.contents(None)
    }
    groups: dict[tuple[str, str], Replicated] = {}
    for leaf in program.arguments:
        purpose = purposes.get(leaf.parameter_number)
        is_of_model = purpose in (Purpose.WEIGHTS, Purpose.OPTIMIZER)
        name = str(purpose) if is_of_model else argument_name(leaf.path)
        spec = [*(leaf.spec or ()), *[None] * (len(leaf.shape) - len(leaf.spec or ()))]
        split = Counter(
            axis for entry in spec for axis in ([entry] if isinstance(entry, str) else entry or ())
        )
        for axis, size in mesh.items():
            whole = [
                n
                for n, entry in enumerate(spec)
                if entry is None and leaf.shape[n] and leaf.shape[n] % size == 0
            ]
            if size == 1 or split[axis] or not whole or leaf.parameter_number is None:
                continue
            along = max(whole, key=lambda n: leaf.shape[n])
            group = groups.setdefault((name, axis), Replicated(name, axis, size, carried=carried))
            group.saved_bytes += leaf.size_bytes - leaf.size_bytes // size
            group.specs[leaf.path] = tuple(
                axis if n == along else entry for n, entry in enumerate(spec)
            )
    least_bytes = _LEAST_SHARE * program.plan.totals.total_allocation_bytes
    largest = sorted(groups.values(), key=lambda group: -group.saved_bytes)
    yield from [group for group in largest if group.saved_bytes > least_bytes][:_MOST]
