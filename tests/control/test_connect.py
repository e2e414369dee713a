"""Connecting out of band with one call at each end; every failure is named."""

import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc.connect import PROTOCOL, Options, connect, listen
from openmrc.control import Channel, Greeting
from openmrc.errors import ArgumentError, ConnectError, DeadlineError, DeviceError, StateError
from openmrc.verbs import Capabilities, Device, QpHint, QpState
from tests.helpers.ends import connected, device, make_end
from tests.helpers.peers import QP, accept, both, greeting, message, request, turned_away


@pytest.fixture
def ends():
    with device().open() as one, device().open() as two:
        yield make_end(one), make_end(two)


def test_one_call_each_takes_both_to_rts_and_tells_them_where_to_write(ends):
    a, b = ends
    target = bytearray(100)
    region = b.region(target)
    with listen("127.0.0.1", 0) as listener:
        client, server = both(
            listener,
            lambda: listener.accept(
                b.qp, buffers=[region, region.remote(10, 20)], data={"name": "b", "nothing": None}, timeout=30
            ),
            lambda: connect("127.0.0.1", listener.address[1], a.qp, data=[1, 2]),
        )
    assert (a.qp.state, b.qp.state) == (QpState.RTS, QpState.RTS)
    assert [buffer.length for buffer in client.buffers] == [100, 20]
    assert (client.data, server.data) == ({"name": "b", "nothing": None}, [1, 2])
    assert (client.qp_nums, server.qp_nums) == ([b.qp.qp_num], [a.qp.qp_num])
    assert client.addresses == b.context.addresses
    a.qp.write(b"through", client.buffers[1].at(3))
    assert a.send_cq.take(1, 20)[0].ok
    assert target[13:20] == b"through"
    client.send({"done": [None]})
    assert server.receive(20) == {"done": [None]}
    both(None, lambda: server.barrier(20), lambda: client.barrier(20))
    client.close()
    with pytest.raises(ConnectError, match="closed the connection"):
        server.receive(20)
    server.close()


def test_many_queue_pairs_are_connected_in_their_order(ends):
    a, b = ends
    mine = [a.pd.create_qp(a.send_cq) for _ in range(20)]
    theirs = [b.pd.create_qp(b.send_cq) for _ in range(20)]
    target = bytearray(20)
    with listen("127.0.0.1", 0) as listener:
        client, server = both(
            listener,
            lambda: listener.accept(theirs, buffers=[b.region(target)], timeout=30),
            lambda: connect("127.0.0.1", listener.address[1], mine),
        )
    with client, server:
        for i, qp in enumerate(mine):
            assert qp.query().attr.dest_qp_num == theirs[i].qp_num
            qp.write(bytes([i]), client.buffers[0].at(i))
        assert all(wc.ok for wc in a.send_cq.take(20, 20))
    assert target == bytes(range(20))


def test_both_ends_use_what_both_can(ends):
    a, b = ends
    with listen("127.0.0.1", 0) as listener:
        client, server = both(
            listener,
            lambda: listener.accept(
                b.qp,
                options=Options(path_mtu=1024, mpr_dest=3, max_wimm=7, caps=Capabilities.TRIM_NACK),
                timeout=30,
            ),
            lambda: connect(
                "127.0.0.1", listener.address[1], a.qp, options=Options(path_mtu=2048, mpr=5, max_wimm_dest=4)
            ),
        )
    client.close()
    server.close()
    one, two = a.qp.query().attr, b.qp.query().attr
    assert one.path_mtu == two.path_mtu == 1024
    assert (one.mpr, two.mpr) == (3, 8)
    assert (one.max_wimm, two.max_wimm) == (128, 4)
    # Each end knows what the other can do.
    assert one.caps == Capabilities.TRIM_NACK
    assert two.caps == Capabilities.TRIM_NACK | Capabilities.OVERFLOW_REPORTS
    assert (one.sq_psn, two.sq_psn) == (two.rq_psn, one.rq_psn)


def test_the_choices_of_a_device_and_a_queue_pair_are_taken():
    choices = {
        "oor": "silent",
        "svc_time": True,
        "wimm_nak_syndrome": 0x61,
        "can_send": "any",
        "dfc": False,
        "start_probe": False,
        "rotation_turns": 1,
        "port_mask_base": 1,
    }
    with connected(rts={"dfc": True}, **choices) as (a, b):
        assert a.qp.query().attr.dfc is True
        target = bytearray(100)
        a.qp.write(b"through", b.region(target).remote())
        assert a.send_cq.take(1, 20)[0].ok
        assert target[:7] == b"through"
        stats = a.qp.stats()
        assert [stats[f"peer_{what}"] for what in ("no_mpr", "unknown_syndrome", "other_ids")] == [0, 0, 0]


def test_attributes_of_mrc_may_come_before_their_step(ends):
    a, _ = ends
    a.qp.modify(QpState.INIT, ev_profile_id=0, cc_profile_id=0)
    a.qp.modify(QpState.INIT, mpr=4, mpr_dest=2, timeout=15)
    attr = a.qp.query().attr
    assert (attr.mpr, attr.mpr_dest, attr.timeout, attr.ev_profile_id) == (4, 2, 15, 0)
    with pytest.raises(StateError, match="does not take sq_psn"):
        a.qp.modify(QpState.INIT, sq_psn=1)


def test_each_end_gets_what_the_other_can_do(ends):
    a, b = ends
    with listen("127.0.0.1", 0) as listener:
        client, server = both(
            listener,
            lambda: listener.accept(b.qp, options=Options(caps=Capabilities.DYNAMIC_MPR), timeout=30),
            lambda: connect("127.0.0.1", listener.address[1], a.qp),
        )
    client.close()
    server.close()
    assert a.qp.query().attr.caps == Capabilities.DYNAMIC_MPR
    # Neither device takes its service time out, so neither says that it does.
    assert b.qp.query().attr.caps == Capabilities.ALL & ~Capabilities.SERVICE_TIME


def test_first_psns_are_random(ends):
    a, b = ends
    psns = set()
    for _ in range(8):
        with listen("127.0.0.1", 0) as listener:
            client, server = both(
                listener,
                lambda: listener.accept(b.qp, timeout=30),
                lambda: connect("127.0.0.1", listener.address[1], a.qp),
            )
        client.close()
        server.close()
        psns |= {a.qp.query().attr.sq_psn, b.qp.query().attr.sq_psn}
        a.qp.modify(QpState.RESET)
        b.qp.modify(QpState.RESET)
    assert len(psns) == 16


def test_a_hint_of_incast_shrinks_the_window(ends):
    a, b = ends
    many = a.pd.create_qp(a.send_cq, hint=QpHint(num_remote_recv_peers=1000))
    with listen("127.0.0.1", 0) as listener:
        client, server = both(
            listener,
            lambda: listener.accept(b.qp, timeout=30),
            lambda: connect("127.0.0.1", listener.address[1], many),
        )
    client.close()
    server.close()
    assert many.query().attr.mpr == 1


SERVER = """
    import sys
    from openmrc.connect import listen
    from openmrc.verbs import Device, QpState
    with Device.from_addresses(*sys.argv[1:]).open() as context:
        cq = context.create_cq()
        pd = context.alloc_pd()
        qp = pd.create_qp(cq)
        memory = bytearray(1 << 20)
        qp.modify(QpState.INIT)
        qp.post_recv(1)
        with listen("127.0.0.1", 0) as listener:
            print(listener.address[1], flush=True)
            peer = listener.accept(qp, buffers=[pd.register(memory)], timeout=30)
        done = cq.take(1, 30)[0]
        assert done.imm_data == 42, done
        peer.send(sum(memory))
        peer.barrier(30)
"""


def test_two_processes_connect_write_and_part():
    addresses = [port.addr for port in device().ports]
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER), *addresses],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(child.stdout.readline())
        with device().open() as context:
            end = make_end(context)
            payload = bytes(range(256)) * 4096
            with connect("127.0.0.1", port, end.qp) as peer:
                end.qp.write(end.region(bytearray(payload)), peer.buffers[0], imm_data=42)
                assert end.send_cq.take(1, 30)[0].ok
                assert peer.receive(30) == sum(payload)
                peer.barrier(30)
        out, errors = child.communicate(timeout=30)
        assert (child.returncode, out, errors) == (0, "", "")
    finally:
        child.kill()
        child.wait()


MET = greeting() + request()

GARBAGE = {
    "no JSON": (message(b"GET / HTTP/1.1"), "malformed|JSON"),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "does not speak"),
    "too long": (struct.pack(">I", 1 << 31), "does not speak"),
    "nothing": (b"", "closed the connection"),
    "half a length": (b"\0\0", "closed the connection"),
    "half a message": (struct.pack(">I", 100) + b"{", "closed the connection"),
    "not UTF-8": (message(b"\xff\xfe"), "malformed"),
    "a list": (message([]), "malformed"),
    "unknown type": (message({"type": "welcome"}), "malformed|welcome"),
    "wrong type": (message({"type": "ready"}), "Ready, which is not allowed here"),
    "other protocol": (greeting(protocol="smtp"), "speaks 'smtp'"),
    "newer version": (greeting(version=2), "version 2 of openmrc-connect meets version 1"),
    "newer handshake": (greeting(handshake=3, secret="x"), "version 3 of the handshake meets version 2"),
    "endless greeting": (greeting(protocol="x" * 2000), "does not speak"),
    "no qps": (MET + accept(qps=[]), "has 0 queue pairs, this end has 1"),
    "no address": (MET + accept(addresses=[]), "malformed|addresses"),
    "no address to begin with": (greeting() + request(addresses=[]), "malformed|addresses"),
    "a name": (MET + accept(addresses=[["home", 1]]), "malformed|addresses|'home'"),
    "qp_num too large": (MET + accept(qps=[QP | {"qp_num": 1 << 24}]), "malformed|qps.0.qp_num"),
    "something more": (MET + accept(colour=1), "malformed|colour"),
    "too much": (MET + struct.pack(">I", 5 << 20), "at most 4194304 are allowed"),
    "SRv6 mode": (greeting() + request(ev_format="srv6"), "format srv6, this end udp"),
    "other family": (MET + accept(addresses=[["::1", 1]]), "IPv6 ports|IPv4"),
    "refusal": (message({"type": "refused", "reason": "not you"}), "refuses: not you"),
    "late refusal": (MET + message({"type": "refused", "reason": "not you"}), "refuses: not you"),
    "goes after its request": (MET, "closed the connection"),
    "goes after its accept": (MET + accept(), "closed the connection"),
}


@pytest.mark.parametrize(("sent", "words"), GARBAGE.values(), ids=GARBAGE)
def test_whatever_comes_instead_of_a_peer_is_named(ends, sent, words):
    _, b = ends

    def stranger(port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    _, error = turned_away(b, stranger)
    assert isinstance(error, str | ConnectError), error
    for word in words.split("|"):
        assert word in str(error)


@settings(max_examples=60)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_whatsoever_do_more_than_a_connect_error(noise, framed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
    with mine, theirs:
        theirs.sendall(message(noise) if framed else noise)
        theirs.close()
        with pytest.raises(ConnectError):
            Channel(mine, "noise", PROTOCOL.messages).expect(Greeting, 20)


def test_a_peer_that_says_nothing_runs_into_the_deadline(ends):
    a, _ = ends
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ConnectError, match="did not answer"),
    ):
        connect("127.0.0.1", silent.getsockname()[1], a.qp, timeout=0.2)
    assert a.qp.state is QpState.RESET


def test_a_peer_that_is_not_there_runs_into_the_deadline(ends):
    a, _ = ends
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectError, match=f"cannot reach 127.0.0.1:{port}"):
        connect("127.0.0.1", port, a.qp, timeout=0.1)
    with listen("127.0.0.1", 0) as listener, pytest.raises(DeadlineError, match="nobody connected"):
        listener.accept(a.qp, timeout=0.1)


def test_a_peer_that_listens_later_is_waited_for(ends):
    a, b = ends
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def late():
        threading.Event().wait(0.2)
        with listen("127.0.0.1", port) as listener:
            return listener.accept(b.qp, timeout=30)

    client, server = both(None, late, lambda: connect("127.0.0.1", port, a.qp, timeout=30))
    client.close()
    server.close()
    assert a.qp.state is QpState.RTS


def test_a_name_that_does_not_resolve_and_a_port_in_use_are_named(ends):
    a, _ = ends
    with pytest.raises(ConnectError, match=r"nowhere\.invalid"):
        connect("nowhere.invalid", 1, a.qp)
    with (
        listen("127.0.0.1", 0) as listener,
        pytest.raises(DeviceError, match=f"127.0.0.1:{listener.address[1]}"),
    ):
        listen(*listener.address)


def test_what_is_wrong_at_one_end_is_told_to_the_other(ends):
    a, b = ends
    with listen("127.0.0.1", 0) as listener:
        mine, theirs = both(
            listener,
            lambda: listener.accept(b.qp, options=Options(ev_profile_id=9), timeout=30),
            lambda: connect("127.0.0.1", listener.address[1], a.qp),
        )
    assert isinstance(theirs, ArgumentError)
    assert isinstance(mine, ConnectError)
    assert "EV profile 9" in str(mine)


def test_a_queue_pair_that_is_connected_already_is_refused(ends):
    a, b = ends
    with listen("127.0.0.1", 0) as listener:
        client, server = both(
            listener,
            lambda: listener.accept(b.qp, timeout=30),
            lambda: connect("127.0.0.1", listener.address[1], a.qp),
        )
        client.close()
        server.close()
        again, _ = both(
            listener,
            lambda: listener.accept(b.qp, timeout=30),
            lambda: connect("127.0.0.1", listener.address[1], a.qp),
        )
    assert isinstance(again, StateError | ConnectError)
    assert "RTS" in str(again)


@pytest.mark.parametrize("options", [{"path_mtu": 100}, {"mpr": 0}, {"caps": 16}])
def test_options_out_of_range_are_refused_before_anything_is_sent(ends, options):
    a, _ = ends
    with listen("127.0.0.1", 0) as listener, pytest.raises(ArgumentError, match=next(iter(options))):
        connect("127.0.0.1", listener.address[1], a.qp, options=Options(**options))


def test_no_queue_pairs_and_those_of_two_devices_are_refused(ends):
    a, b = ends
    with listen("127.0.0.1", 0) as listener:
        for qps, words in (([], "at least one"), ([a.qp, b.qp], "one context")):
            with pytest.raises(ArgumentError, match=words):
                connect("127.0.0.1", listener.address[1], qps)


def test_ipv6_devices_connect_over_ipv6():
    # Below the kernel's range of source ports.
    ports = [10000 + os.getpid() * 4 % 20000 + i for i in range(4)]
    make = Device.from_addresses
    one = make("::1").replace(ports=[Port6(ports[0]), Port6(ports[1])])
    two = make("::1").replace(ports=[Port6(ports[2]), Port6(ports[3])])
    with one.open() as c1, two.open() as c2:
        a, b = make_end(c1), make_end(c2)
        target = bytearray(2)
        with listen("::1", 0) as listener:
            client, server = both(
                listener,
                lambda: listener.accept(b.qp, buffers=[b.region(target)], timeout=30),
                lambda: connect("::1", listener.address[1], a.qp),
            )
        with client, server:
            a.qp.write(b"v6", client.buffers[0])
            assert a.send_cq.take(1, 20)[0].ok
        assert target == b"v6"


def Port6(port):  # noqa: N802 - stands for a class
    from openmrc.verbs import Port

    return Port("::1", port)
