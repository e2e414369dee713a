"""Boolean tomography: the fewest links that explain which paths are dead (docs/spec/paths.md, "EV events").

With static source routes an entropy value is a list of links. A link that many dead paths share, and that no
living path has, is broken.
"""

from collections import Counter
from collections.abc import Iterable

from openmrc.fabric import Path


def smallest_cover(dead: Iterable[Path], alive: Iterable[Path]) -> list[str]:
    """The smallest set of links, by a greedy search, whose failure explains the dead paths.

    Args:
        dead: Condemned paths of any hosts.
        alive: Paths on which packets arrive; their links are not broken.

    Returns:
        Names of links; the link that explains most paths comes first. If the same dead paths share several
        links, all of them. A dead path that has only living links has another cause, such as a lost
        acknowledgment, and is ignored.
    """
    working = {link for path in alive for link in path.links}
    unexplained = [set(path.links) - working for path in dead]
    found: list[str] = []
    while votes := Counter(link for links in unexplained for link in links):
        most = max(votes.values())
        best = sorted(link for link, count in votes.items() if count == most)
        # Of links with the same number of votes, only those with votes from the same paths belong together.
        together = [
            link for link in best if all((link in links) == (best[0] in links) for links in unexplained)
        ]
        found += together
        unexplained = [links for links in unexplained if best[0] not in links]
    return found
