"""The evidence of CUSUM in numbers."""

import math

import pytest

from openmrc.localise import Cusum, alarm_threshold


def test_the_threshold_is_the_logarithm_of_probes_per_false_alarm():
    assert alarm_threshold(2, 3, 4) == pytest.approx(math.log(2 * 3 * 86_400 / 4), rel=1e-9)


def test_a_loss_adds_its_likelihood_ratio_and_a_success_takes_its_own():
    cusum = Cusum(math.log(5), background=0.1, losses=[0.5])
    assert (cusum.evidence, cusum.alarm) == (0, False)
    assert not cusum.observe(1, 0)
    assert cusum.evidence == 0
    assert cusum.observe(1, 1), "an alarm is raised at the threshold itself"
    assert cusum.evidence == pytest.approx(math.log(5))
    assert not cusum.observe(1, 0)
    assert cusum.evidence == pytest.approx(math.log(5) + math.log(0.5 / 0.9))
    # Within a batch losses come last.
    cusum.observe(2, 1)
    assert cusum.evidence == pytest.approx(2 * (math.log(5) + math.log(0.5 / 0.9)))


@pytest.mark.parametrize(("successes", "tested"), [(0, 0.999), (1, 0.1), (50, 0.01), (1000, 0.001)])
def test_the_share_that_explains_most_counts(successes, tested):
    cusum = Cusum(1)
    cusum.observe(1, 1)
    cusum.observe(successes, 0)
    expected = math.log(tested / 1e-6) + successes * (math.log(1 - tested) - math.log(1 - 1e-6))
    assert cusum.evidence == pytest.approx(expected)
