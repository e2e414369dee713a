"""A report for those who decide, which an engineer can check: one HTML file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from openmrc import htmlpage
from openmrc.jobs.effect import Cause
from openmrc.jobs.outcome import Loss
from openmrc.jobs.studies import Study, Summary, percent, table


class Bar(NamedTuple):
    """A part of a stacked bar."""

    title: str
    colour: str
    """Name of a colour of the page."""
    share: float


_COLOURS = {
    Cause.HOSTS: "faint",
    Cause.NICS: "series-2",
    Cause.NIC_LINKS: "failed",
    Cause.FABRIC_LINKS: "impaired",
    Cause.SWITCHES: "series-4",
}


def write(study: Study, rates: Mapping[str, Study], changes: Mapping[str, Study], path: Path | str) -> None:
    """Writes the report.

    Args:
        study: The job.
        rates: The same with other rates of failures, by what differs.
        changes: The same with what one could buy.
        path: The file.

    Raises:
        OSError: if the file cannot be written.
    """
    job = study.job
    htmlpage.write(
        path,
        "openmrc.jobs",
        "report.html.j2",
        title=f"{job.gpus:,} GPUs, {job.days:g} days",
        lead="What failures cost a training job, network by network",
        sentence=study.sentence(),
        table=(study.columns, study.rows()),
        notes=study.notes(),
        bars=[(each.network.name, list(_bars(each))) for each in study.summaries],
        legend=[("training", "good"), ("checkpoints", "unknown"), *((c.title, _COLOURS[c]) for c in Cause)],
        losses=_losses(study),
        rates=table("rates", study, rates) if rates else None,
        changes=table(f"{job.networks[0].name} with", study, changes) if changes else None,
        shapes=[
            (
                each.network.name,
                f"{each.shape.planes} x {job.nic_gbps / each.shape.planes:g} Gb/s",
                str(each.shape.tiers),
                f"{each.shape.host_links:,}",
                f"{each.shape.fabric_links:,}",
                f"{each.shape.t0s + each.shape.uppers:,}",
                f"{each.interval_s / 60:.1f} min",
            )
            for each in study.summaries
        ],
        job=yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=100),
        seeds=f"{study.seeds[0]} to {study.seeds[-1]}",
    )


def _bars(summary: Summary) -> Iterator[Bar]:
    yield Bar("training", "good", summary.effective.mean)
    yield Bar("checkpoints", "unknown", summary.checkpoints)
    for cause in Cause:
        share = sum(share for title, _, share in summary.shares() if title == cause.title)
        if share > 0:
            yield Bar(cause.title, _COLOURS[cause], share)


def _losses(study: Study) -> tuple[list[str], list[list[str]]]:
    """Share of the time by cause and kind of loss: a row for each, a column for each network."""
    found = [{(cause, loss): share for cause, loss, share in each.shares()} for each in study.summaries]
    rows = [
        [cause.title, loss.title, *(percent(shares.get((cause.title, loss.title), 0.0)) for shares in found)]
        for cause in Cause
        for loss in Loss
        if any((cause.title, loss.title) in shares for shares in found)
    ]
    return ["cause", "loss", *(each.network.name for each in study.summaries)], rows
