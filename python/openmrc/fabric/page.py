"""A plan as one HTML file. Every figure is that of :mod:`openmrc.fabric.report`."""

from pathlib import Path

from openmrc import htmlpage, pictures
from openmrc.errors import ArgumentError
from openmrc.fabric import report
from openmrc.fabric.plan import Plan
from openmrc.files import read_text


def write(plan: Plan, path: Path | str) -> None:
    """Writes the page.

    Raises:
        Error: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    pictures.require_matplotlib()
    from openmrc.fabric import drawing

    fabric, asked = plan.fabric, plan.asked
    file = fabric.spec.path
    htmlpage.write(
        path,
        "openmrc.fabric",
        "plan.html.j2",
        title=f"Fabric {fabric.spec.name}",
        lead=report.sentence(plan),
        facts=report.facts(plan),
        notes=asked.notes,
        drawing=htmlpage.embedded(drawing.draw(fabric)),
        materials=report.materials(plan),
        sources=report.sources(plan),
        worst=report.worst_loss(asked),
        losses=report.losses(asked),
        comparison=report.comparison(plan),
        **_addresses(plan),
        hosts=f"{asked.hosts:,}",
        file=file and file.name,
        specification=file and read_text(file),
    )


def _addresses(plan: Plan) -> dict[str, object]:
    """The prefixes, and one path as an example; nothing if the fabric cannot have path addresses."""
    fabric = plan.fabric
    try:
        path = fabric.paths(0, fabric.hosts - 1)[0]
        shown = {"example": report.path_sentence(path), "hops": report.hops(path)}
    except ArgumentError:
        shown = {"example": None, "hops": None}
    return {"addressing": fabric.spec.addressing, **shown}
