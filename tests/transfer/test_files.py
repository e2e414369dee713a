"""How received files come by their names: on every kind of file system, and what killed runs leave behind."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmrc.transfer import incoming
from openmrc.transfer import protocol as p
from openmrc.transfer.incoming import StoreError
from openmrc.transfer.store import split
from tests.helpers.labs import needs_root
from tests.helpers.repository import ROOT
from tests.helpers.stores import DATA, DIGEST, everything_below, leave, opened, put, refuse


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / "root"
    directory.mkdir()
    return directory


# --- file systems that lack something -----------------------------------------------------------------------


LACKS = {
    "nameless files": ["tmpfile"],
    "hard links": ["link"],
    "nameless files and hard links": ["tmpfile", "link"],
    "hard links and renames without replacement": ["link", "noreplace"],
    "all of them, and modes": ["tmpfile", "link", "noreplace", "chmod"],
    "locks": ["tmpfile", "flock"],
    "nothing": [],
}


@pytest.fixture(params=LACKS.values(), ids=LACKS)
def lacking(request, monkeypatch):
    """As on a file system that says that it cannot do these things."""
    really_open = os.open

    def open_with_name(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            refuse(errno.EOPNOTSUPP)
        return really_open(path, flags, *args, **kwargs)

    def says(number):
        return lambda *args, **kwargs: refuse(number)

    patches = {
        "tmpfile": (os, "open", open_with_name),
        "link": (os, "link", says(errno.EPERM)),
        "noreplace": (incoming, "_renameat2", None),
        "chmod": (os, "fchmod", says(errno.EPERM)),
        "flock": (incoming.fcntl, "flock", says(errno.EOPNOTSUPP)),
    }
    for what in request.param:
        monkeypatch.setattr(*patches[what])
    return request.param


@pytest.mark.parametrize("below", ["", "a/b/"])
def test_files_arrive_whatever_the_file_system_lacks(root, lacking, below):
    with opened(root, replace=True) as store:
        for if_exists in ("refuse", "replace"):
            assert put(store, f"{below}file", if_exists).commit(DIGEST) == DIGEST
            assert (root / below / "file").read_bytes() == DATA
        with pytest.raises(StoreError, match="taken"):
            put(store, f"{below}file").commit(DIGEST)
        with pytest.raises(StoreError, match="checksum"):
            put(store, f"{below}other").commit("0" * 32)
        put(store, f"{below}given up").discard()
        assert [path.name for path in root.rglob("*") if path.is_file()] == ["file"]


def test_a_name_taken_in_the_meantime_is_kept_whatever_the_file_system_lacks(root, lacking):
    with opened(root) as store:
        file = put(store, "file")
        (root / "file").write_text("mine")
        with pytest.raises(StoreError, match="taken"):
            file.commit(DIGEST)
    assert (root / "file").read_text() == "mine"
    assert everything_below(root) == ["file"]


def test_without_hard_links_a_file_gets_its_name_in_one_step_where_the_system_can(root, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *args, **kwargs: refuse(errno.EPERM))
    monkeypatch.setattr(incoming, "_rename_if_free", lambda *args: pytest.fail("took two steps"))
    with opened(root) as store:
        put(store, "file").commit(DIGEST)
    assert everything_below(root) == ["file"]


MOUNTED = """
    import os, sys
    from pathlib import Path
    sys.path.insert(0, {repository!r})
    from tests.helpers import stores as t
    root = Path({root!r})
    with t.opened(root, replace=True) as store:
        for if_exists in ("refuse", "replace"):
            t.put(store, "mounted/below/file", if_exists).commit(t.DIGEST)
            assert (root / "mounted/below/file").read_bytes() == t.DATA
    t.leave(root / "mounted/below/.openmrc-0123456789abcdef")
    with t.opened(root, replace=True) as store:
        t.put(store, "mounted/below/file", "replace").commit(t.DIGEST)
    assert t.everything_below(root) == ["mounted", "mounted/below", "mounted/below/file"]
"""


@needs_root
@pytest.mark.parametrize("kind", ["ramfs", "tmpfs"])
def test_another_file_system_mounted_below_is_stored_into_as_well(root, kind):
    (root / "mounted").mkdir()
    script = textwrap.dedent(MOUNTED).format(repository=str(ROOT), root=str(root))
    mount = f'mount -t {kind} {kind} "$1" && shift && exec "$@"'
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", str(root / "mounted"), sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr


# --- what killed runs leave behind --------------------------------------------------------------------------


def test_leftovers_of_killed_runs_are_removed_and_nothing_else(root, tmp_path):
    for name in (".openmrc-0123456789abcdef", ".openmrc-ffffffffffffffff"):
        leave(root / name)
    kept = [".openmrc-0123", ".openmrc-0123456789abcdef0", "x.openmrc-0123456789abcdef", ".openmrc-XYZ"]
    for name in kept:
        leave(root / name)
    (root / ".openmrc-00000000000000aa").mkdir()
    outside = leave(tmp_path / "outside")
    (root / ".openmrc-00000000000000bb").symlink_to(outside)
    os.mkfifo(root / ".openmrc-00000000000000cc")
    with opened(root) as store:
        assert store.leftovers == 2
    others = [f".openmrc-00000000000000{end}" for end in ("aa", "bb", "cc")]
    assert everything_below(root) == sorted(kept + others)
    assert outside.exists()


HOLDS = """
    import errno, os, sys, time
    from pathlib import Path
    sys.path.insert(0, {repository!r})
    from tests.helpers import stores as t
    really_open = os.open
    def open_with_name(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            t.refuse(errno.EOPNOTSUPP)
        return really_open(path, flags, *args, **kwargs)
    os.open = open_with_name
    store = t.opened(Path({root!r}))
    file = t.put(store, "file")
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_file_of_a_run_that_lives_is_left_alone_until_it_is_killed(root):
    script = textwrap.dedent(HOLDS).format(repository=str(ROOT), root=str(root))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with opened(root) as store:
            assert store.leftovers == 0
        [held] = everything_below(root)
        assert held.startswith(".openmrc-")
        child.send_signal(signal.SIGKILL)
        child.wait(20)
        with opened(root) as store:
            assert store.leftovers == 1
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert everything_below(root) == []


def test_without_locks_only_old_files_count_as_left_behind(root, monkeypatch):
    young, old = leave(root / ".openmrc-0000000000000001"), leave(root / ".openmrc-0000000000000002")
    long_ago = time.time() - 2 * 86_400
    os.utime(old, (long_ago, long_ago))
    monkeypatch.setattr(incoming.fcntl, "flock", lambda *args: refuse(errno.EOPNOTSUPP))
    with opened(root) as store:
        assert store.leftovers == 1
    assert young.exists()


# --- what the receiver has to allow -------------------------------------------------------------------------


@pytest.mark.parametrize("if_exists", ["refuse", "replace", "update"])
def test_nothing_that_exists_is_replaced_or_described_unless_that_is_allowed(root, if_exists):
    (root / "file").write_bytes(DATA)
    entry = p.Entry(path="file", size=len(DATA))
    with opened(root) as store:
        [verdict] = store.review(if_exists).judge([entry])
        assert "exists already" in verdict.error
        assert verdict.digest is None
        with pytest.raises(StoreError, match="taken"):
            put(store, "file", if_exists).commit(DIGEST)


def test_each_right_allows_what_it_says(root):
    (root / "file").write_bytes(DATA)
    same, longer = p.Entry(path="file", size=len(DATA)), p.Entry(path="file", size=len(DATA) + 1)

    def verdicts(**rights):
        with opened(root, **rights) as store:
            return [store.review("update").judge([entry])[0] for entry in (same, longer)]

    one, two = verdicts(digests=True)
    assert one == p.Verdict(digest=DIGEST, keep=True)
    assert "lets nothing be replaced" in two.error
    assert verdicts(replace=True) == [p.Verdict(), p.Verdict()]
    assert verdicts(replace=True, digests=True) == [p.Verdict(digest=DIGEST), p.Verdict()]


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o4755, 0o6111, 0o7777])
def test_modes_are_taken_over_without_what_is_planted(root, mode):
    mask = os.umask(0)
    os.umask(mask)
    plain = p.Entry.model_construct(path="plain", size=len(DATA), mode=mode)
    for allowed, name in ((False, "plain"), (True, "allowed")):
        with opened(root, executable=allowed) as store:
            file = store.create(plain.model_copy(update={"path": name}), "refuse")
            file.write(memoryview(DATA))
            file.commit(DIGEST)
    assert (root / "plain").stat().st_mode & 0o7777 == mode & 0o666 & ~mask
    assert (root / "allowed").stat().st_mode & 0o7777 == mode & 0o777 & ~mask


@pytest.mark.parametrize("path", [".openmrc-0123456789abcdef", "a/.openmrc-x/b", "a/.openmrc-"])
def test_names_of_the_receivers_own_are_refused(root, path):
    with opened(root) as store:
        assert "receiver's own" in store.review("refuse").judge([p.Entry(path=path)])[0].error
        with pytest.raises(StoreError):
            store.create(p.Entry(path=path), "refuse")
    assert everything_below(root) == []


@given(
    st.text(max_size=30)
    | st.lists(st.sampled_from(["..", ".", "", "a", "\0", "é"]), max_size=4).map("/".join)
)
def test_what_split_lets_pass_is_plainly_below(path):
    try:
        names = split(path)
    except StoreError:
        return
    assert "/".join(names) == path
    assert not {"", ".", ".."} & set(names)
    assert os.path.normpath(os.path.join("/root", path)) == f"/root/{path}"  # noqa: PTH118


def test_a_name_that_became_a_pipe_is_not_waited_for(root, monkeypatch):
    (root / "file").write_bytes(DATA)
    real = os.stat

    def swap(name, *args, **kwargs):
        found = real(name, *args, **kwargs)
        if name == "file":
            (root / "file").unlink()
            os.mkfifo(root / "file")
        return found

    with opened(root, digests=True) as store:
        monkeypatch.setattr(os, "stat", swap)
        begun = time.monotonic()
        store.review("update").judge([p.Entry(path="file", size=len(DATA))])
        assert time.monotonic() - begun < 20
