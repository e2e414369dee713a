"""Storing received files, and a sender that breaks the rules."""

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest
import xxhash

from openmrc.control import Greeting
from openmrc.errors import ConnectError
from openmrc.transfer import protocol as p
from openmrc.transfer.incoming import StoreError
from openmrc.transfer.receiver import Server
from openmrc.transfer.store import Rights, Store, split
from tests.helpers.senders import Rogue

OUTSIDE = [
    "../evil",
    "/etc/evil",
    "a/../../evil",
    "..",
    ".",
    "",
    "a//b",
    "a/",
    "./a",
    "a/./b",
    "nul\0l",
    "x" * 256,
]


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with Store(root, sync=False, rights=Rights(replace=True, digests=True)) as store:
        yield store


def digest(data):
    return xxhash.xxh3_128(data).hexdigest()


def names(store):
    return [path.name for path in sorted(store.root.iterdir())]


def beside(store):
    return [path.name for path in store.root.parent.iterdir()]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_is_not_plainly_below_is_refused(store, path):
    with pytest.raises(StoreError):
        split(path)
    if path:
        entry = p.Entry(path=path, size=1)
        assert store.review("replace").judge([entry])[0].error
        with pytest.raises(StoreError):
            store.create(entry, "replace")
    assert names(store) == []
    assert beside(store) == ["root"]


@pytest.mark.parametrize("link_is", ["parent", "target"])
def test_a_symbolic_link_inside_does_not_lead_outside(store, tmp_path, link_is):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("safe")
    if link_is == "parent":
        (store.root / "way").symlink_to(outside)
        with pytest.raises(StoreError, match="symbolic link"):
            store.create(p.Entry(path="way/file", size=1), "replace")
    else:
        # The link is replaced; its target stays.
        (store.root / "file").symlink_to(outside / "file")
        incoming = store.create(p.Entry(path="file", size=3), "replace")
        incoming.write(memoryview(b"new"))
        incoming.commit(digest(b"new"))
        assert not (store.root / "file").is_symlink()
    assert (outside / "file").read_text() == "safe"


@pytest.mark.parametrize("nameless", [True, False])
def test_a_file_has_no_name_until_it_is_right(store, monkeypatch, nameless):
    if not nameless:
        # As on a file system without nameless files.
        really_open = os.open

        def refuses(path, flags, *args, **kwargs):
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return really_open(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", refuses)
    for mode in ("refuse", "replace"):
        wrong = store.create(p.Entry(path="file", size=3), mode)
        wrong.write(memoryview(b"abd"))
        visible = [name for name in names(store) if not name.startswith(".openmrc-")]
        assert visible == ([] if mode == "refuse" else ["file"])
        assert nameless == (visible == names(store))
        with pytest.raises(StoreError, match="checksum"):
            wrong.commit(digest(b"abc"))
        assert names(store) == visible
        right = store.create(p.Entry(path="file", size=3, mode=0o640), mode)
        right.write(memoryview(b"ab"))
        right.write(memoryview(b"c"))
        assert right.commit(digest(b"abc")) == digest(b"abc")
        assert names(store) == ["file"]
        assert (store.root / "file").read_bytes() == b"abc"


def test_a_name_that_is_taken_meanwhile_is_not_overwritten(store):
    incoming = store.create(p.Entry(path="file", size=1), "refuse")
    incoming.write(memoryview(b"x"))
    (store.root / "file").write_text("mine")
    with pytest.raises(StoreError, match="taken while"):
        incoming.commit(digest(b"x"))
    assert (store.root / "file").read_text() == "mine"
    assert names(store) == ["file"]


def test_more_bytes_than_announced_are_refused(store):
    incoming = store.create(p.Entry(path="file", size=2), "refuse")
    with pytest.raises(StoreError, match="2 bytes"):
        incoming.write(memoryview(b"xyz"))
    incoming.discard()
    incoming.discard()
    assert names(store) == []


def test_what_has_no_room_is_refused_as_a_whole(store):
    with pytest.raises(StoreError, match="GB are free"):
        store.review("refuse").judge([p.Entry(path="a", size=1 << 60), p.Entry(path="b", size=1)])


def test_a_file_named_twice_is_refused_the_second_time(store):
    verdicts = store.review("refuse").judge([p.Entry(path="a"), p.Entry(path="a")])
    assert [verdict.error is None for verdict in verdicts] == [True, False]


def test_a_descriptor_is_kept_for_no_longer_than_needed(store):
    before = descriptors()
    for i in range(20):
        incoming = store.create(p.Entry(path=f"d/{i}", size=1), "refuse")
        incoming.write(memoryview(b"x"))
        incoming.commit(digest(b"x")) if i % 2 else incoming.discard()
        with pytest.raises(StoreError):
            store.create(p.Entry(path=f"d/{i}/../x", size=1), "refuse")
    assert descriptors() == before


# --- a sender that does not keep to the rules ---------------------------------------------------------------


@pytest.fixture
def rogue(store):
    server = Server(store, host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    rogue = Rogue(server.port)
    yield rogue
    rogue.close()
    server.close()
    thread.join(20)
    assert not thread.is_alive()


def answers(rogue):
    """All messages until the server ends the session."""
    heard = []
    with contextlib.suppress(ConnectError):
        while True:
            heard.append(rogue.channel.receive(10))
    return heard


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil"])
def test_a_path_outside_is_refused_whatever_the_sender_does_then(rogue, store, path):
    verdicts = rogue.announce(p.Entry(path=path, size=3), p.Entry(path="good", size=3))
    assert verdicts[0].error
    assert verdicts[1] == p.Verdict()
    rogue.block(b"bad", 0)
    rogue.channel.send(p.End(index=0, digest=digest(b"bad")))
    rogue.block(b"yes", 1)
    rogue.channel.send(p.End(index=1, digest=digest(b"yes")))
    assert rogue.channel.receive(10) == p.Stored(index=1, digest=digest(b"yes"))
    assert names(store) == ["good"]
    assert beside(store) == ["root"]


def test_a_wrong_checksum_stores_nothing(rogue, store):
    rogue.announce(p.Entry(path="file", size=3))
    rogue.block(b"abd", 0)
    rogue.channel.send(p.End(index=0, digest=digest(b"abc")))
    failed = rogue.channel.expect(p.Failed)
    assert "checksum" in failed.reason
    assert names(store) == []


def test_a_file_that_ends_early_or_goes_on_too_long_stores_nothing(rogue, store):
    rogue.announce(p.Entry(path="long", size=2), p.Entry(path="given up", size=2))
    rogue.block(b"abc", 0)
    assert "2 bytes" in rogue.channel.expect(p.Failed).reason
    rogue.block(b"a", 1)
    rogue.channel.send(p.End(index=1))
    assert rogue.channel.expect(p.Failed).index == 1
    assert names(store) == []


@pytest.mark.parametrize("what", ["block", "end", "greeting"])
def test_nonsense_ends_the_session_and_stores_nothing(rogue, store, what):
    rogue.announce(p.Entry(path="file", size=3))
    rogue.block(b"ab", 0)
    match what:
        case "block":
            rogue.block(b"x", 7)
        case "end":
            rogue.channel.send(p.End(index=7, digest=""))
        case "greeting":
            rogue.channel.send(Greeting(protocol=p.PROTOCOL.name, version=1))
    assert answers(rogue) == []
    assert names(store) == []
