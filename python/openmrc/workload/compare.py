"""The same step on several networks, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from openmrc import notebook
from openmrc.errors import ArgumentError
from openmrc.workload.placement import PLACEMENTS, place_all
from openmrc.workload.program import Workload
from openmrc.workload.run import StepResults, default_scenario, run

if TYPE_CHECKING:
    from openmrc.sim import Progress, Scenario


@dataclass(frozen=True, slots=True)
class Variant:
    """A network for a step, and where the ranks are on it."""

    transport: str | None
    """As ``openmrc compare`` takes it; ``None``: the scenario's."""
    planes: int | None
    """``None``: the scenario's. Planes of the same total bandwidth."""
    placement: str

    def __str__(self) -> str:
        planes = f"{self.planes} planes" if self.planes != 1 else "1 plane"
        parts = [self.transport, planes if self.planes is not None else None, self.placement]
        return ", ".join(part for part in parts if part is not None)

    def of(self, scenario: "Scenario") -> "Scenario":
        """The scenario with this network.

        Raises:
            ArgumentError: if there is no such transport or number of planes.
        """
        from openmrc.sim import transports

        if self.planes is not None:
            scenario = transports.on_planes(scenario, self.planes)
        return scenario if self.transport is None else transports.apply(scenario, self.transport)


@dataclass(frozen=True, slots=True)
class Figures:
    """A run of a variant."""

    seed: int
    step_us: float
    exposed_us: float
    critical_path_us: dict[str, float]
    finished: bool
    retransmits: int


@dataclass(frozen=True, repr=False)
class StepComparison:
    """Results by variant, in the order asked for."""

    results: dict[Variant, list[Figures]]
    """A run for each seed."""
    interrupted: bool = False
    """Whether an interrupt ended it: the last run may be incomplete, and those after it are missing."""

    columns = ("network", "step ms", "exposed ms", "of the step", "beside the first", "most beside computing")
    """Headings of :meth:`rows`."""

    def __repr__(self) -> str:
        return f"<StepComparison of {len(self.results)} networks>"

    def _repr_html_(self) -> str:
        return notebook.table(self.rows(), self.columns)

    def rows(self) -> list[list[str]]:
        """A table, a row for each variant; with several seeds the mean of each figure.

        A step that has not ended has no figures.
        """
        rows = []
        first: float | None = None
        for variant, runs in self.results.items():
            if not all(run.finished for run in runs):
                rows.append([str(variant), "not ended", "-", "-", "-", "-"])
                continue
            step, exposed = (fmean(getattr(run, name) for run in runs) for name in ("step_us", "exposed_us"))
            first = step if first is None else first
            what, us = next(
                ((what, us) for what, us in runs[0].critical_path_us.items() if what != "computing"),
                ("-", 0.0),
            )
            rows.append(
                [
                    str(variant),
                    f"{step / 1e3:,.3f}",
                    f"{exposed / 1e3:,.3f}",
                    f"{exposed / step:.1%}" if step else "-",
                    f"{step / first:.3f}" if first else "-",
                    f"{what} {us / 1e3:,.3f}",
                ]
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, for JSON."""
        return {
            "variants": [
                {**asdict(variant), "runs": [asdict(run) for run in runs]}
                for variant, runs in self.results.items()
            ],
            "interrupted": self.interrupted,
        }


def variants(
    transports: Sequence[str] = (), planes: Sequence[int] = (), placements: Sequence[str] = ("t0",)
) -> list[Variant]:
    """Every combination; an empty list stands for what the scenario has.

    Raises:
        ArgumentError: if a name or number is there twice, or there is no such placement.
    """
    for name, values in (("transports", transports), ("planes", planes), ("placements", placements)):
        for at, value in enumerate(values):
            if value in values[:at]:
                raise ArgumentError(f"{name}: {value} is named twice")
    for placement in placements:
        if placement not in PLACEMENTS:
            raise ArgumentError(f"placements: {placement!r} is not known: {', '.join(PLACEMENTS)}")
    return [
        Variant(*each) for each in product(transports or (None,), planes or (None,), placements or ("t0",))
    ]


def compare(
    workload: Workload,
    wanted: Sequence[Variant],
    scenario: "Scenario | None" = None,
    seeds: int = 1,
    progress: "Callable[[str, Progress], object] | None" = None,
    engine: Literal["packets", "auto", "flow"] | None = None,
) -> StepComparison:
    """Runs a step on several networks. Every network is checked before the first run.

    Args:
        workload: A workload without problems.
        wanted: The networks (:func:`variants`).
        scenario: As :func:`openmrc.workload.run` takes it.
        seeds: Runs of each, with the scenario's seed and the following ones.
        progress: Called now and then with the network and how far its run has come.
        engine: What executes the runs; default: the scenario's.

    Raises:
        ArgumentError: if a network cannot be built or the step does not fit.
        OSError: if the temporary files of a run cannot be written.
    """
    from openmrc.sim.check import check, try_network

    base = default_scenario(len(workload.ranks)) if scenario is None else scenario
    if engine is not None:
        base = base.model_copy(update={"engine": engine})
    networks = {variant: variant.of(base) for variant in wanted}
    for variant, network in networks.items():
        try:
            try_network(network, check(network))
            place_all([workload], variant.placement, network.topology.hosts)
        except ArgumentError as error:
            raise ArgumentError(f"{variant}: {error}") from None
    results: dict[Variant, list[Figures]] = {}
    for variant, network in networks.items():
        for seed in range(network.seed, network.seed + seeds):
            advance = None if progress is None else partial(progress, str(variant))
            step = run(workload, network.model_copy(update={"seed": seed}), advance, variant.placement)
            results.setdefault(variant, []).append(_figures(step, seed))
            if step.results.interrupted:
                return StepComparison(results, interrupted=True)
    return StepComparison(results)


def _figures(step: StepResults, seed: int) -> Figures:
    retransmits = step.results.totals["retransmits"]
    path = step.critical_path_us()
    return Figures(seed, step.step_us, step.exposed_us, path, step.finished, retransmits)
