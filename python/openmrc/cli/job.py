"""``openmrc job``: what failures cost a training job over days."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common
from openmrc.cli._progress import progress
from openmrc.cli._simulation import check_outputs
from openmrc.errors import ArgumentError, FormatError

if TYPE_CHECKING:
    from openmrc.fabric import Fabric
    from openmrc.jobs import Job, Study


def job(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[JOB.yaml]", help="The job; without it, one of the given size with all defaults."
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs that train, in place of those in the file.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(metavar="DAYS", help="For how long, in place of the file's days.")
    ] = None,
    networks: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Networks, in place of those in the file: mrc, rocev2-planes, dual-port, conventional.",
        ),
    ] = None,
    fabric: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The first network has the links and switches of this fabric, or of a directory that"
            " `openmrc config` wrote, if its configurations are right.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Draws of failures, with the job's seed and the following ones.")
    ] = 8,
    flows: Annotated[
        bool,
        typer.Option(
            "--flows",
            help="Simulate at flow level, at full size, how much longer messages take with lost ports, in"
            " place of the ratio of bandwidth.",
        ),
    ] = False,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Also with other rates, as published by others."),
    ] = False,
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if", help="Also with more planes, spares, faster repairs, restarts and checkpoints."
        ),
    ] = False,
    failures: Annotated[
        Path | None,
        typer.Option(metavar="LOG.csv", help="Failures of this log in place of drawn ones."),
    ] = None,
    write_failures: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG.csv",
            help="Write the failures of the first draw on the first network, a row for each.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write one HTML file with everything, for others to read."),
    ] = None,
    json: _common.JsonOption = False,
    schema: Annotated[bool, _common.schema_option("job")] = False,
) -> None:
    """Say what failures cost a training job over days, on each of several networks.

    Failures of hosts, NICs, links and switches are drawn from their rates; on every network the hosts fail at
    the same times. What each failure does follows from the network's design: steps become slower, all ranks
    wait, or the job starts again from its last checkpoint. Intervals are over the seeds.
    """
    from openmrc import jobs

    check_outputs([report, write_failures])
    if failures and (sensitivity or what_if or write_failures):
        raise ArgumentError(
            "--failures: a log has no rates and one network: it goes without --sensitivity, --what-if and"
            " --write-failures"
        )
    built = _built(fabric) if fabric else None
    described = _described(file, gpus, days, networks, built)
    log = jobs.read_log(failures) if failures else None
    simulated = jobs.Flows(built) if flows else None
    with progress("runs") as advance:
        study = jobs.study(described, seeds, advance, log, flows=simulated)
    with progress("changed jobs") as advance:
        rates = jobs.compare(jobs.sensitivity(described), seeds, advance, simulated) if sensitivity else {}
        changes = jobs.compare(jobs.what_if(described), seeds, advance, simulated) if what_if else {}
    if json:
        _common.print_json(
            study.to_dict()
            | {
                name: {text: each.to_dict()["networks"] for text, each in found.items()}
                for name, found in (("sensitivity", rates), ("what_if", changes))
                if found
            }
        )
    else:
        _show(study)
        if sensitivity:
            _common.print_table(*jobs.table("rates", study, rates))
        if what_if:
            _common.print_table(*jobs.table(f"{described.networks[0].name} with", study, changes))
    if write_failures:
        number = jobs.write_log(write_failures, described)
        _common.console(stderr=True).print(f"wrote {write_failures}: {number:,} failures")
    if report:
        from openmrc.jobs import report as page

        page.write(study, rates, changes, report)
        _common.console(stderr=True).print(f"wrote {report}")


def _built(fabric: Path) -> "Fabric":
    """A fabric from its file, or from configurations that give it."""
    from openmrc.fabric import Fabric

    if not fabric.is_dir():
        return Fabric.load(fabric)
    from openmrc.switchconf import verify, written

    with progress("switches") as advance:
        found = verify(fabric, progress=advance)
    if not found.ok:
        raise FormatError(
            f"{fabric}: {found.problems[0]}; `openmrc verify {fabric}` names all {len(found.problems):,}"
        )
    return written(fabric)[0]


def _described(
    file: Path | None, gpus: int | None, days: float | None, networks: str | None, fabric: "Fabric | None"
) -> "Job":
    from openmrc.jobs import Job, load
    from openmrc.jobs.network import named, of_fabric

    given: dict[str, Any] = {
        "gpus": gpus,
        "days": days,
        "networks": None if networks is None else [name.strip() for name in networks.split(",")],
    }
    given = {name: value for name, value in given.items() if value is not None}
    if file is None:
        if fabric is not None:
            given = {"gpus": fabric.hosts, "nic_gbps": fabric.port_rate * fabric.planes / 1e9} | given
        job = Job.model_validate(given)
    else:
        job = load(file)
    if fabric is not None:
        first, *others = given.get("networks", job.networks)
        first = named(first) if isinstance(first, str) else first
        given["networks"] = [of_fabric(first, fabric), *others]
    if not given:
        return job
    changed = Job.model_validate(job.model_dump(exclude_unset=True) | given)
    changed._source = job._source
    return changed


def _show(study: "Study") -> None:
    screen = _common.console()
    screen.print(study.sentence(), markup=False, highlight=False)
    _common.print_table(study.columns, study.rows())
    for note in study.notes():
        screen.print(note, markup=False, highlight=False)
