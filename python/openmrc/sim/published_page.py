"""The page docs/published.md: published figures, ours with their interval over seeds, and what was chosen."""

from collections import Counter
from collections.abc import Iterator, Sequence

from openmrc.sim import paper
from openmrc.sim.reproduce import Bounds, Claim, Outcome, Swept, Verdict
from openmrc.sim.text import count

HEAD = """\
# Published results, and ours

What has been published of MRC (arXiv 2605.04333), simulated. `make truth` writes this page; the rows with
their bounds are in [scenarios/published](../scenarios/published). Every number of ours is a simulation's.
The pictures are of one seed; `openmrc reproduce --figure 9c` draws one.

A claim **agrees** only if its interval lies within bounds that were written down before the run: the smallest
and the largest value over the seeds, or the 95 % confidence interval of the mean where the page says *mean*.
A claim for which a parameter was fitted is **calibrated** and counts neither way. Bounds are ours where the
paper says "near" or "about". A table that begins with the name of a field has claims of its row with other
values of it.
[Decisions](decisions.md#published-rows-files-with-bounds-in-the-package) has the reasons."""


def page(outcomes: Sequence[Outcome], *, full: bool = False) -> Iterator[str]:
    """The lines of the page."""
    yield HEAD
    words = Counter(verdict.word for outcome in outcomes for verdict in outcome.verdicts)
    claims = sum(words.values())
    seconds = sum(outcome.took_s for outcome in outcomes)
    yield (
        f"\n{words['agrees']} of {claims} claims agree, {words['disagrees']} do not, "
        f"{words['calibrated']} are calibrated. The runs took {seconds / 60:.0f} minutes of one processor's "
        "time.\n"
    )
    yield "| row | claim | verdict |"
    yield "|---|---|---|"
    for outcome in outcomes:
        for verdict in outcome.verdicts:
            yield f"| {outcome.row.row} | {verdict.claim.says} | {word(verdict)} |"
    yield ""
    for outcome in outcomes:
        yield from section(outcome, full=full)


def section(outcome: Outcome, *, full: bool = False) -> Iterator[str]:
    """The lines of one row."""
    row = outcome.row
    yield f"## {row.row}: {row.setting}\n"
    scaled = f"  \nScaled: {row.scaled}." if row.scaled and not (full and row.full) else ""
    chosen = f"  \nChosen, as the paper leaves it open: {'; '.join(row.chosen)}." if row.chosen else ""
    yield f"Published: {row.published}.{scaled}{chosen}\n"
    for name in paper.figures_of(row.row):
        yield f"![Figure {name} of the paper, from our runs](images/published-{name}.png)\n"
    yield "| claim | ours | interval | bounds | verdict |"
    yield "|---|---|---|---|---|"
    for verdict in outcome.verdicts:
        cells = (ours(verdict), interval(verdict), bounds(verdict.bounds), word(verdict))
        yield f"| {verdict.claim.says} | {' | '.join(cells)} |"
    yield ""
    for verdict in outcome.verdicts:
        if verdict.claim.calibrated:
            yield f"*{verdict.claim.says}* is calibrated: {verdict.claim.calibrated}.\n"
        if verdict.claim.why:
            yield f"*{verdict.claim.says}*: {verdict.claim.why}.\n"
    for swept in outcome.swept:
        yield from _swept(swept)


def _swept(swept: Swept) -> Iterator[str]:
    values = swept.sweep.values
    heads = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    yield f"| `{swept.sweep.over}` | {' | '.join(heads)} |"
    yield "|---|" + "---|" * len(values)
    for number, claim in enumerate(verdict.claim for verdict in swept.verdicts[0]):
        cells = [f"{ours(verdicts[number])} ({interval(verdicts[number])})" for verdicts in swept.verdicts]
        yield f"| {claim.says} | {' | '.join(cells)} |"
    yield ""


def ours(verdict: Verdict) -> str:
    """The mean over the seeds, with its unit."""
    return "-" if verdict.ours is None else f"{number(verdict.ours)} {verdict.claim.unit}".strip()


def interval(verdict: Verdict) -> str:
    """What is compared with the bounds."""
    if verdict.interval is None:
        return "-"
    least, greatest = verdict.interval
    mean = ", mean" if verdict.claim.over == "mean" else ""
    return f"{number(least)} to {number(greatest)}{mean}, {count(len(verdict.values), 'seed')}"


def bounds(value: Bounds) -> str:
    """Bounds in words."""
    low, high = value
    if high is None:
        return f"at least {low:g}"
    return f"at most {high:g}" if low is None else f"{low:g} to {high:g}"


def word(verdict: Verdict) -> str:
    """The verdict; what disagrees stands out."""
    return {"agrees": "agrees", "calibrated": "calibrated"}.get(verdict.word, "**does not**")


def number(value: float) -> str:
    """Four digits."""
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"


__all__ = ["Claim", "bounds", "interval", "number", "ours", "page", "section", "word"]
