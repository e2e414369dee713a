"""Which link is broken, from the paths that hosts gave up (spec: paths, "EV events").

With static source routes an entropy value is a list of links. What many dead paths of different hosts share,
and no living path has, is what broke.
"""

from collections import Counter
from collections.abc import Iterable

from openmrc.fabric import Path


def locate(dead: Iterable[Path], alive: Iterable[Path]) -> list[str]:
    """The fewest links, as far as one finds them greedily, whose failure explains the dead paths.

    Args:
        dead: Paths that were condemned, of any hosts.
        alive: Paths on which packets arrive: a link of theirs is not broken.

    Returns:
        Names of links, the one that explains most first; where the same dead paths share several, all of
        those. A dead path of living links only has another reason (a lost acknowledgement, say) and is left
        out.
    """
    innocent = {link for path in alive for link in path.links}
    unexplained = [set(path.links) - innocent for path in dead]
    found: list[str] = []
    while votes := Counter(link for links in unexplained for link in links):
        most = max(votes.values())
        best = sorted(link for link, count in votes.items() if count == most)
        # Of links with equally many votes, take together only those that the same paths voted for.
        together = [
            link for link in best if all((link in links) == (best[0] in links) for links in unexplained)
        ]
        found += together
        unexplained = [links for links in unexplained if best[0] not in links]
    return found
