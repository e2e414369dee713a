"""How much a loop loses now: counts that reach back to when its loss changed last.

A window of fixed length is too long for a link that has just been cut and too short for one that loses a
thousandth. So counts are added up over the longest time in which the share of losses has not changed: a
generalised likelihood ratio test for a change at each place of the window (Lorden, Ann. Math. Stat. 1971).
"""

import math
from collections import deque

CHANGE = 8.0
"""Nats from which the share of losses has changed: by chance in one of 3,000 places of a steady stream."""


class Recent:
    """Probes of a loop, sent and lost, since its loss changed last."""

    def __init__(self, most: int, *, quiet: int = 0) -> None:
        """Starts without any, or with what has arrived so far.

        Args:
            most: Intervals that are remembered.
            quiet: Probes in each of these intervals before, of which none was lost.
        """
        self._most = most
        self._intervals: deque[tuple[int, int]] = deque([(quiet, 0)] * most if quiet else [])
        self.sent = quiet * most
        """Probes sent."""
        self.lost = 0
        """Of these, lost."""

    def add(self, sent: int, lost: int) -> None:
        """Adds what an interval has brought, and forgets what was before the last change."""
        if len(self._intervals) == self._most:
            self._forget_first()
        self._intervals.append((sent, lost))
        self.sent, self.lost = self.sent + sent, self.lost + lost
        all_sent, all_lost = self.sent, self.lost
        if not all_lost:
            return
        together = _log_likelihood(all_sent, all_lost)
        best, place, falls = CHANGE, 0, False
        old_sent = old_lost = 0
        for number, (sent, lost) in enumerate(self._intervals):
            split = _log_likelihood(old_sent, old_lost) + _log_likelihood(
                all_sent - old_sent, all_lost - old_lost
            )
            # Of places with only intervals without probes between them the last one.
            if split - together >= best:
                best, place = split - together, number
                falls = old_lost * all_sent > all_lost * old_sent
            old_sent, old_lost = old_sent + sent, old_lost + lost
        for _ in range(place):
            self._forget_first()
        # In the interval of a repair some probes were still lost: no evidence of what is now.
        if falls and self._intervals[0][1]:
            self._forget_first()

    def _forget_first(self) -> None:
        sent, lost = self._intervals.popleft()
        self.sent, self.lost = self.sent - sent, self.lost - lost


def _log_likelihood(sent: int, lost: int) -> float:
    """Of these losses at the share that explains them best, nats."""
    if not 0 < lost < sent:
        return 0.0
    return lost * math.log(lost / sent) + (sent - lost) * math.log1p(-lost / sent)
