"""Since when does a stream of probes lose? A sequential test with a stated rate of false alarms.

CUSUM (Page, Biometrika 1954) on a Bernoulli stream: the log-likelihood ratio of "loses this share" to "loses
the background" is summed up and never falls below zero; an alarm is raised at a threshold. The mean time
between false alarms of one stream is at least exp(threshold) probes.
"""

import math
from collections.abc import Sequence

SECONDS_PER_DAY = 86_400

LOSS_RATES = (1e-3, 1e-2, 1e-1, 0.999)
"""Shares that are tested for side by side: neighbours are within a decade of every share that matters."""


def alarm_threshold(streams: int, probes_per_second: float, false_alarms_per_day: float) -> float:
    """The threshold, in nats, for a rate of false alarms over all streams together.

    Args:
        streams: Streams that are watched.
        probes_per_second: Of each stream.
        false_alarms_per_day: Over all of them.
    """
    return math.log(streams * probes_per_second * SECONDS_PER_DAY / false_alarms_per_day)


def expected_probes(threshold: float, background: float, loss: float) -> float:
    """Probes until an alarm, on average, of a stream that loses ``loss`` instead of ``background``."""
    divergence = loss * math.log(loss / background) + (1 - loss) * math.log((1 - loss) / (1 - background))
    return threshold / divergence


class Cusum:
    """The test of one stream, for several rates of loss side by side."""

    def __init__(
        self, threshold: float, *, background: float = 1e-6, losses: Sequence[float] = LOSS_RATES
    ) -> None:
        """Starts with no evidence.

        Args:
            threshold: Nats, as from :func:`alarm_threshold`.
            background: Share that a healthy path loses.
            losses: Shares of loss that are tested for.
        """
        self.threshold = threshold
        self._steps = [
            (math.log(loss / background), math.log1p(-loss) - math.log1p(-background)) for loss in losses
        ]
        self._sums = [0.0] * len(losses)

    @property
    def evidence(self) -> float:
        """Evidence for loss, nats; 0 for none."""
        return max(self._sums)

    @property
    def alarm(self) -> bool:
        """Whether the evidence has reached the threshold."""
        return self.evidence >= self.threshold

    def observe(self, sent: int, lost: int) -> bool:
        """Takes the outcome of the next probes; returns whether the alarm is raised.

        Within a batch the losses are taken to come last: a batch never raises an alarm that its probes one by
        one, in the worst order, would not have raised.
        """
        for number, (on_loss, on_success) in enumerate(self._steps):
            before = max(0.0, self._sums[number] + (sent - lost) * on_success)
            self._sums[number] = max(0.0, before + lost * on_loss)
        return self.alarm
