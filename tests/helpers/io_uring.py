"""Whether this machine lets a program use io_uring."""

import pytest

from tests.helpers.ends import device


def need_io_uring():
    """Skips the test where the kernel is too old or io_uring is forbidden."""
    with device(1, io_uring=True).open() as context:
        if context.stats()["send_descriptors"] != 1:
            pytest.skip("no io_uring here")
