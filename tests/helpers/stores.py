"""Stores of received files, and what lies in them."""

import os

import xxhash

from openmrc.transfer import protocol as p
from openmrc.transfer.store import Rights, Store

DATA = bytes(range(256)) * 20
DIGEST = xxhash.xxh3_128(DATA).hexdigest()


def opened(root, **rights):
    return Store(root, sync=False, rights=Rights(**rights))


def everything_below(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def put(store, path, if_exists="refuse", mode=0o644):
    file = store.create(p.Entry(path=path, size=len(DATA), mode=mode), if_exists)
    file.write(memoryview(DATA))
    return file


def refuse(number):
    raise OSError(number, os.strerror(number))


def leave(path):
    path.write_bytes(b"half a file")
    return path
