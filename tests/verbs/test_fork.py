"""A fork: what the child has of the parent's objects is closed, and nothing it does disturbs the parent."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path

import pytest

from openmrc import errors
from openmrc.connect import connect, listen
from openmrc.transfer.receiver import Server
from openmrc.transfer.sender import Sender
from openmrc.transfer.store import Store
from openmrc.verbs import QpState
from tests.helpers.ends import connected, device, eventually, make_end
from tests.helpers.repository import ROOT

# Python warns of any fork of a process that has threads, which every open device has.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_child(work):
    """Runs ``work`` in the child of a fork; returns its exit status, 99 for an exception."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


@contextlib.contextmanager
def traffic(a, b):
    """Writes all the time, so that the engines hold their locks and queues change when a fork comes."""
    source, target = a.region(bytearray(b"x" * 65536)), b.region(bytearray(65536)).remote()
    stop, count, failed = threading.Event(), [0], []

    def run():
        try:
            while not stop.is_set():
                a.qp.write(source, target)
                (done,) = a.send_cq.take(1, 20)
                assert done.ok
                count[0] += 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: count[0]
    finally:
        stop.set()
        thread.join()
    assert not failed, failed


USES = {
    "alloc_pd": lambda a: a.context.alloc_pd(),
    "create_cq": lambda a: a.context.create_cq(),
    "stats": lambda a: a.context.stats(),
    "path_stats": lambda a: a.context.path_stats(),
    "ports_up": lambda a: a.context.ports_up(),
    "async event": lambda a: a.context.async_events.poll(),
    "wait for async event": lambda a: a.context.async_events.get(1),
    "EV event": lambda a: a.context.ev_events.poll(),
    "dropped": lambda a: a.context.ev_events.dropped,
    "subscribe": lambda a: a.context.ev_events.subscribe(),
    "register": lambda a: a.pd.register(bytearray(1)),
    "create_qp": lambda a: a.pd.create_qp(a.send_cq),
    "poll": lambda a: a.send_cq.poll(),
    "wait": lambda a: a.send_cq.wait(1),
    "take": lambda a: a.send_cq.take(1, 1),
    "post_send": lambda a: a.qp.write(b"x", a.target),
    "post_recv": lambda a: a.qp.post_recv(1),
    "modify": lambda a: a.qp.modify(QpState.ERROR),
    "query": lambda a: a.qp.query(),
    "qp stats": lambda a: a.qp.stats(),
    "ev_states": lambda a: a.qp.ev_states(),
    "qp ports": lambda a: a.qp.ports_up(),
}


def test_whatever_the_child_uses_is_closed():
    with connected() as (a, b):
        a.target = b.region(bytearray(8)).remote()

        def use():
            assert a.context.closed
            for name, call in USES.items():
                with pytest.raises(errors.ClosedError, match="child of a fork"):
                    pytest.fail(f"{name} went through: {call(a)}")
            with a.context.polling():
                a.context.progress()

        assert in_child(use) == 0
        a.qp.write(b"parent", a.target)
        assert a.send_cq.take(1, 20)[0].ok


def close_all(*ends):
    for end in ends:
        end.qp.close()
        end.pd.close()
        end.context.close()


def leave(how, a, b):
    """The child's end, in the ways in which programs end."""
    match how:
        case "_exit":
            os._exit(0)
        case "close":
            close_all(a, b)
        case "exec":
            os.execv(sys.executable, [sys.executable, "-c", "pass"])


@pytest.mark.parametrize("how", ["_exit", "close", "exec"])
def test_a_child_ends_while_the_parent_has_traffic(how):
    with connected() as (a, b), traffic(a, b) as written:
        for _ in range(20):
            assert in_child(lambda: leave(how, a, b)) == 0
        before = written()
        assert eventually(lambda: written() > before + 10)


def test_the_normal_end_of_a_child_does_not_hang():
    # A process of its own: its finalizers must not be those of the test run.
    code = """
        import os, sys
        sys.path.insert(0, {root!r})
        from tests.helpers.ends import connected
        with connected() as (a, b):
            remote = b.region(bytearray(8)).remote()
            if (pid := os.fork()) == 0:
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            a.qp.write(b"parent", remote)
            assert a.send_cq.take(1, 20)[0].ok
        print("parent goes on")
    """
    code = textwrap.dedent(code).format(root=str(ROOT))
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "parent goes on\n", "")


def open_in_child(pipe):
    with connected() as (a, b):
        a.qp.write(b"child", b.region(bytearray(8)).remote())
        pipe.send(a.send_cq.take(1, 20)[0].ok)


def test_a_process_of_multiprocessing_opens_devices_of_its_own():
    fork = multiprocessing.get_context("fork")
    with connected() as (a, b), traffic(a, b) as written:
        ours, theirs = fork.Pipe()
        child = fork.Process(target=open_in_child, args=(theirs,))
        child.start()
        assert ours.poll(20)
        assert ours.recv() is True
        child.join(20)
        assert child.exitcode == 0
        before = written()
        assert eventually(lambda: written() > before)


def test_a_child_that_lives_on_holds_no_address_of_the_parent():
    one = device()
    context = one.open()
    end = make_end(context)
    end.region(bytearray(1))
    there, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        # Until it runs, it has copies of everything.
        os.read(there, 1)
        context.close()
        with one.open() as again:
            assert not again.closed
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(there)
        os.close(ready)


def test_a_child_that_closes_a_listener_or_a_server_does_not_close_the_parents(tmp_path):
    with Store(tmp_path) as store, Server(store, host="127.0.0.1", port=0) as server:
        serving = threading.Thread(target=server.serve)
        serving.start()
        with listen("127.0.0.1", 0) as listener, device().open() as one, device().open() as two:

            def close():
                listener.close()
                server.close()

            assert in_child(close) == 0
            a, b = make_end(one), make_end(two)
            accepting = threading.Thread(target=lambda: listener.accept(a.qp, timeout=20).close())
            accepting.start()
            connect("127.0.0.1", listener.address[1], b.qp).close()
            accepting.join()
        with Sender("127.0.0.1", server.port) as sender:
            assert sender.send([]).complete
        server.close()
        serving.join()


def target(fd):
    """What a descriptor of this process refers to; empty if there is no such descriptor."""
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return ""


def test_a_child_has_no_descriptor_of_a_device():
    with connected() as (a, _):
        queue = a.send_cq.fileno()

        def look():
            assert target(queue) == "/dev/null"
            numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
            kinds = [target(fd) for fd in numbers]
            assert not any("eventpoll" in kind for kind in kinds), kinds

        assert in_child(look) == 0
        assert target(queue) == "anon_inode:[eventfd]"
