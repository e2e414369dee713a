"""A lab comes up, goes down, and leaves nothing behind, also after failures."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openmrc.errors import ArgumentError, FormatError, StateError
from openmrc.fabric import Fabric
from openmrc.lab import Lab, state, system
from openmrc.lab.faults import loss_program
from openmrc.lab.state import State
from tests.helpers.ends import eventually
from tests.helpers.labs import needs_root, running, specification, unique

OPENMRC = [sys.executable, "-c", "import sys; from openmrc.cli import main; sys.exit(main())"]


def openmrc(*arguments):
    return subprocess.run([*OPENMRC, *arguments], capture_output=True, text=True, timeout=120)


def host_network():
    """Interfaces, addresses and routes of the namespace that the tests run in."""
    return [
        subprocess.run(["ip", *what], capture_output=True, text=True, check=True).stdout
        for what in (["-o", "link"], ["-o", "address"], ["route"], ["-6", "route"])
    ]


def test_without_root_it_says_so_in_one_line(monkeypatch, capsys, tmp_path):
    from openmrc import cli

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file = specification(tmp_path, "unprivileged")
    for arguments in (["up", str(file)], ["status"], ["down"], ["fail", "p0/t1-0"]):
        assert cli.main(["lab", *arguments]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: a lab ")
        assert "root" in error
        assert error.count("\n") == 1


@pytest.fixture
def states(tmp_path, monkeypatch):
    """The directory of the states, of no real lab."""
    monkeypatch.setattr(state, "ROOT", tmp_path / "lab")
    (tmp_path / "lab").mkdir()
    return tmp_path / "lab"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "", ".", "..", ".lock", "x\n", "/etc", "x" * 64])
def test_a_name_that_no_lab_can_have_is_refused_before_a_file_is_read(states, name):
    foreign = states.parent / "x"
    foreign.mkdir()
    (foreign / "state.json").write_text(json.dumps({"name": "x", "namespaces": ["openmrc-x-h0"]}))
    for load in (State.load, state.the_name):
        with pytest.raises(ArgumentError, match="is not the name of a lab"):
            load(name)
    with pytest.raises(ArgumentError, match="is not the name of a lab"):
        State(name, []).save()


def test_a_lab_may_be_called_lock(states):
    with state.locked():
        State("lock", ["openmrc-lock-h0"]).save()
    with state.locked():
        assert State.load("lock").namespaces == ["openmrc-lock-h0"]
    assert state.names() == ["lock"]


def test_a_state_that_another_user_could_have_written_is_refused(states, monkeypatch):
    State("x", ["openmrc-x-h0"]).save()
    file = states / "x" / "state.json"
    for path in (states, states / "x", file):
        for bit in (0o020, 0o002):
            before = path.stat().st_mode
            path.chmod(before | bit)
            with pytest.raises(FormatError, match=f"others may write {path}: chmod go-w"):
                State.load("x")
            path.chmod(before)
    assert State.load("x").namespaces == ["openmrc-x-h0"]
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 4711)
        if os.getuid():
            with pytest.raises(FormatError, match=f"{states} belongs to user {os.getuid()}"):
                State.load("x")
    elsewhere = states.parent / "elsewhere"
    (states / "x").rename(elsewhere)
    (states / "x").symlink_to(elsewhere)
    with pytest.raises(FormatError, match="is a symbolic link"):
        State.load("x")


@needs_root
def test_a_state_of_another_user_is_refused_by_root(states):
    State("x", ["openmrc-x-h0"]).save()
    os.chown(states / "x" / "state.json", 4711, 4711)
    with pytest.raises(FormatError, match="belongs to user 4711, not to root"):
        State.load("x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "y", "namespaces": ["openmrc-x-h0"]},
        {"name": "x", "namespaces": ["openmrc-y-h0"]},
        {"name": "x", "namespaces": ["openmrc-x-../../etc"]},
        {"name": "x", "namespaces": [1]},
        {"name": "x", "namespaces": None},
    ],
)
def test_a_state_that_names_others_namespaces_is_refused(states, wrong):
    State("x", []).save()
    (states / "x" / "state.json").write_text(json.dumps(wrong))
    with pytest.raises(FormatError, match="remove the directory"):
        State.load("x")


@pytest.mark.parametrize("loss", [-0.1, 1.01, float("nan")])
def test_a_loss_that_is_no_share_is_refused(loss):
    with pytest.raises(ArgumentError, match="share"):
        loss_program(loss)


@needs_root
def test_a_lab_leaves_the_host_s_own_network_alone_and_nothing_behind(tmp_path):
    before = host_network()
    with running(tmp_path, "alone", hosts=4, radix=4) as lab:
        spaces = [lab.namespace(node) for node in lab.layout.nodes]
        assert system.existing(spaces) == spaces
        assert host_network() == before
    assert system.existing(spaces) == []
    assert not lab.state.directory.exists()
    assert host_network() == before


def in_namespace(process, lab, host):
    own = Path(f"/proc/{process.pid}/ns/net").stat()
    return os.path.samestat(own, (system.NAMESPACES / lab.namespace(host)).stat())


@needs_root
def test_going_down_ends_what_runs_in_the_lab(tmp_path):
    with running(tmp_path, "busy", hosts=4, radix=4) as lab:
        sleeper = subprocess.Popen(lab.command("h0", ["sleep", "600"]))
        stubborn = subprocess.Popen(
            lab.command(
                "h1",
                [
                    sys.executable,
                    "-c",
                    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
                ],
            )
        )
        # A process that has not entered the namespace yet would not be ended.
        assert eventually(lambda: in_namespace(sleeper, lab, "h0") and in_namespace(stubborn, lab, "h1"))
    assert sleeper.wait(timeout=60) == -signal.SIGTERM
    assert stubborn.wait(timeout=60) in (-signal.SIGKILL, -signal.SIGTERM)


@needs_root
def test_what_a_crashed_run_leaves_is_cleaned_up_by_the_next(tmp_path):
    file = specification(tmp_path, unique("crash"), hosts=4, radix=4)
    code = (
        "import os, signal, sys\n"
        "from openmrc.fabric import Fabric\n"
        "from openmrc.lab import Lab\n"
        "def die(what):\n    if 'hosts' in what: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Lab.up(Fabric.load(sys.argv[1]), progress=die)\n"
    )
    crashed = subprocess.run([sys.executable, "-c", code, str(file)], timeout=120)
    assert crashed.returncode == -signal.SIGKILL
    left = State.load(unique("crash"))
    assert not left.complete
    assert system.existing(left.namespaces) == left.namespaces
    with pytest.raises(StateError, match="did not come up"):
        Lab.open(unique("crash"))
    lab = Lab.up(Fabric.load(file))
    try:
        assert lab.counters("h0")["p0"].up
    finally:
        lab.down()
    assert system.existing(left.namespaces) == []


@needs_root
def test_a_failure_on_the_way_up_leaves_nothing(tmp_path):
    name = unique("half")
    file = specification(tmp_path, name, hosts=4, radix=4)

    def fail(what):
        if "hosts" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lab.up(Fabric.load(file), progress=fail)
    assert not State(name, []).directory.exists()
    assert not [space for space in system.NAMESPACES.iterdir() if name in space.name]


@needs_root
def test_a_namespace_of_somebody_else_is_never_touched(tmp_path):
    name = unique("foreign")
    file = specification(tmp_path, name, hosts=4, radix=4)
    foreign = f"openmrc-{name}-h1"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        with pytest.raises(StateError, match=f"{foreign} exists already"):
            Lab.up(Fabric.load(file))
        assert system.existing([foreign]) == [foreign]
        assert not State(name, []).directory.exists()
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


@needs_root
def test_faults_survive_the_process_that_made_them(tmp_path):
    with running(tmp_path, "shared", hosts=4, radix=4) as lab:
        lab.fail("p0/t1-1")
        other = Lab.open(lab.name)
        other.degrade("h3:p1", loss=0.01)
        with pytest.raises(StateError, match="failed already"):
            other.fail("p0/t1-1")
        # The first has not read the file since then: it must not lose the changes of the other.
        lab.fail("h0:p0")
        assert State.load(lab.name).loss == {lab.layout.link("h3:p1").name: 0.01}
        assert len(lab.repair()) == 3
        after = State.load(lab.name)
        assert (after.cut, after.stopped, after.loss) == ([], [], {})
        with pytest.raises(StateError, match="has not failed"):
            lab.repair("h0:p0")


@needs_root
def test_names_that_do_not_exist_are_refused_with_an_example(tmp_path):
    with running(tmp_path, "names", hosts=4, radix=4) as lab:
        for call in (lab.fail, lab.repair, lambda what: lab.degrade(what, loss=0.5)):
            with pytest.raises(ArgumentError, match="p9/t0-0:up0 is no link or port of this lab"):
                call("p9/t0-0:up0")
        with pytest.raises(ArgumentError, match="h4 is no node"):
            lab.namespace("h4")
        with pytest.raises(StateError, match="up already"):
            Lab.up(lab.fabric)
        with pytest.raises(StateError, match="no lab nowhere is up"):
            Lab.open("nowhere")


@needs_root
def test_the_command_line_does_all_of_it(tmp_path):
    name = unique("command")
    file = specification(tmp_path, name, hosts=4, radix=4)
    result = openmrc("lab", "up", str(file))
    assert result.returncode == 0, result.stderr
    assert f"lab {name} is up" in result.stdout
    try:
        assert openmrc("lab", "fail", "p0/t0-0:up1", "--lab", name).returncode == 0
        assert openmrc("lab", "degrade", "h1:p1", "--loss", "2%", "--lab", name).returncode == 0
        status = json.loads(openmrc("lab", "status", "--json", "--lab", name).stdout)
        assert status["loss"] == {"h1:p1--p1/t0-0:down1": 0.02}
        assert status["cut"] == ["p0/t0-0:up1--p0/t1-1"]
        assert len(status["hosts"]["h3"]["addresses"]) == 2
        # The arguments after the dashes go to the command; its exit code is returned.
        inside = openmrc(
            "lab", "exec", "--lab", name, "h3", "--", "ip", "-json", "-6", "address", "show", "p1"
        )
        [address] = [a["local"] for a in json.loads(inside.stdout)[0]["addr_info"] if a["scope"] == "global"]
        assert address == status["hosts"]["h3"]["addresses"][1]
        assert openmrc("lab", "exec", "--lab", name, "h3", "--", "sh", "-c", "exit 7").returncode == 7
        assert openmrc("lab", "repair", "--lab", name).stdout.count("repaired") == 2
        flapped = openmrc("lab", "flap", "p1/t1-0", "--down", "0", "--up", "0", "--count", "3", "--lab", name)
        assert flapped.returncode == 0, flapped.stderr
        status = json.loads(openmrc("lab", "status", "--json", "--lab", name).stdout)
        assert (status["cut"], status["stopped"], status["loss"]) == ([], [], {})
        up = openmrc("lab", "degrade", "h1:p1", "--loss", "3%", "--direction", "up", "--lab", name)
        assert up.returncode == 0, up.stderr
        status = json.loads(openmrc("lab", "status", "--json", "--lab", name).stdout)
        assert status["direction"] == {"h1:p1--p1/t0-0:down1": "up"}
        assert "loses 3 % upwards" in openmrc("lab", "graph", "--lab", name).stdout
        assert openmrc("lab", "repair", "h1:p1", "--lab", name).returncode == 0
        assert json.loads(openmrc("lab", "status", "--json", "--lab", name).stdout)["direction"] == {}
        for options in (["--loss", "much"], ["--direction", "up"], ["--loss", "1%", "--direction", "left"]):
            wrong = openmrc("lab", "degrade", "h1:p1", *options, "--lab", name)
            assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1), wrong.stderr
    finally:
        assert openmrc("lab", "down", "--lab", name).returncode == 0
    assert "no lab" in openmrc("lab", "status", "--lab", name).stderr
