"""The text that the model learns: the log of a made-up network, the same for the same seed."""

import random

BYTES = 1 << 18
"""Length of the text."""

_SENTENCES = (
    "plane {plane} of host h{host} is down; traffic moves to the other planes.",
    "plane {plane} of host h{host} is up again.",
    "switch p{plane}/t1-{switch} reboots: {count} links lost.",
    "link p{plane}/t0-{switch}:up{port} loses {count} packets of a million.",
    "path {count} is condemned after two timeouts; a spare path takes its place.",
    "path {count} answers its probe and returns.",
    "all_reduce of {count} MB over {planes} planes has ended in {count} ms.",
    "rank {host} waits for rank {switch}.",
    "step {count}: every gradient has arrived.",
)


def made(seed: int = 1) -> bytes:
    """The text.

    Args:
        seed: Another seed makes another text of the same kind.
    """
    dice = random.Random(seed)
    lines: list[str] = []
    length = seconds = 0
    while length < BYTES:
        seconds += dice.randrange(1, 60)
        time = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        sentence = dice.choice(_SENTENCES).format(
            plane=dice.randrange(8),
            planes=dice.choice((2, 4, 8)),
            host=dice.randrange(64),
            switch=dice.randrange(8),
            port=dice.randrange(4),
            count=dice.randrange(1, 100),
        )
        lines.append(f"{time} {sentence}\n")
        length += len(lines[-1])
    return "".join(lines).encode("ascii")[:BYTES]
