"""The pages say for how long a peer may be silent, and it is so."""

import inspect
import math
import time
from pathlib import Path

import pytest

from openmrc import _core
from openmrc.transfer.ring import PEER_TIMEOUT
from openmrc.verbs import AccessFlags, QpAttr, WcStatus
from tests.helpers.ends import connected

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = ("timeout", "linear_cnt", "exp_cnt")


def lasts(**attributes):
    return _core.retry_seconds(*({**_core.QP_DEFAULTS, **attributes}[name] for name in NAMES))


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("security.md", "by default after {:.0f} s"),
        ("decisions.md", "## Retries last {:.0f} s by default"),
        ("decisions.md", "a write fails after {:.0f} s"),
        ("decisions.md", "long before {:.0f} s of retries have passed"),
    ],
)
def test_the_pages_say_how_long_retries_last(page, words):
    assert words.format(lasts()) in " ".join((DOCS / page).read_text().split())


def test_the_attribute_says_how_long_retries_last():
    text = " ".join(inspect.getsource(QpAttr).split())
    assert f"default {_core.QP_DEFAULTS['exp_cnt']}. With the other" in text
    assert f"fails with RETRY_EXC_ERR after {lasts():.0f} s" in text


def test_retries_outlast_the_patience_of_a_transfer_and_double_or_have_no_end():
    assert lasts() > PEER_TIMEOUT
    assert lasts(exp_cnt=25) is None
    assert math.isclose(lasts(timeout=10, linear_cnt=3, exp_cnt=2), 1.024e-6 * 1024 * (3 + 2 + 4 + 8))


def test_a_peer_that_is_gone_ends_a_write_when_the_retries_end():
    short = {"timeout": 12, "linear_cnt": 3, "exp_cnt": 2}
    with connected(planes=2, rts=short) as (a, b):
        memory = bytearray(64)
        with a.region(b"x" * 64, AccessFlags.NONE) as source:
            target = b.region(memory, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE).remote()
            b.context.close()
            begin = time.monotonic()
            a.qp.write(source, target)
            assert a.send_cq.wait(30)
            silence = time.monotonic() - begin
            assert [done.status for done in a.send_cq.poll()] == [WcStatus.RETRY_EXC_ERR]
            assert silence >= lasts(**short)
