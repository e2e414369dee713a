"""The C interface: headers, symbols, and C programs that use every function."""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from openmrc import Error, _core, clibrary
from tests.helpers.ends import loopback
from tests.helpers.programs import (
    ADDRESSES,
    SOURCES,
    STRICT,
    compile_c,
    need_compiler,
    need_tool,
    program,
    run,
    with_device,
)

PROGRAMS = [
    "application",
    "controller",
    "many",
    "processes",
    "killed",
    "registration",
    "receives",
    "plugin",
    "pingpong",
    "threads",
    "forked",
    "extended",
    "crowd",
    "eight",
    "newer",
]


def test_hello_world_has_sixty_lines_and_says_hello(tmp_path):
    assert len((SOURCES / "hello.c").read_text().splitlines()) <= 60
    said = run([program(tmp_path, "hello")])
    assert (said.returncode, said.stdout) == (0, "hello over every plane (64 bytes, immediate 7)\n"), (
        said.stderr
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_c_programs_find_every_function_as_the_page_says(tmp_path, name):
    result = run([program(tmp_path, name)])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["application", "controller", "threads"])
def test_c_programs_under_sanitizers(tmp_path, name):
    options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    result = run([program(tmp_path, name, *options)], ASAN_OPTIONS="detect_leaks=0")
    assert result.returncode == 0, result.stderr


def test_an_example_of_a_vendor_is_also_a_program_in_cpp(tmp_path):
    need_tool("c++", "g++")
    need_compiler()
    pedantic = compile_c(
        ["c++", "-x", "c++", "-std=c++17"], *STRICT, "-c", str(SOURCES / "pingpong.c"), "-o", "/dev/null"
    )
    assert pedantic.returncode == 0, pedantic.stderr
    result = run([program(tmp_path, "pingpong", compiler=["c++", "-x", "c++", "-std=c++17"])])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["processes", "plugin"])
@pytest.mark.parametrize("impairments", ["drop", "reorder"])
def test_data_is_complete_before_the_immediate_over_a_bad_network(tmp_path, impairments, name):
    config = (
        f'[[device]]\nname = "mrc0"\naddresses = {json.dumps(ADDRESSES)}\n'
        f'[[device.impair]]\nkind = "{impairments}"\nprobability = 0.01\npacket_class = "data"\n'
    )
    result = run([program(tmp_path, name)], OPENMRC_CONFIG=config, OPENMRC_DEVICES="")
    assert result.returncode == 0, result.stderr


def test_a_controller_of_structured_values_makes_profiles_of_every_mode(tmp_path):
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6: structured values have their place in its headers")
    config = '[[device]]\nname = "mrc0"\naddresses = ["::1"]\nev_format = "structured"\n'
    result = run([program(tmp_path, "structured")], OPENMRC_CONFIG=config, OPENMRC_DEVICES="")
    assert result.returncode == 0, result.stderr
    port = result.stdout.strip()
    assert result.stderr == (
        f"openmrc: EV profile 4: send socket from ::1 port {port}: Address already in use (os error 98)\n"
    )


def test_one_profile_serves_queue_pairs_to_several_peers(tmp_path):
    devices = ";".join(f"mrc{i}={','.join(loopback(2))}" for i in range(4))
    result = run([program(tmp_path, "peers")], OPENMRC_DEVICES=devices)
    assert result.returncode == 0, result.stderr


def test_a_controller_is_told_of_paths_that_fail_and_come_back(tmp_path):
    config = (
        f'[[device]]\nname = "mrc0"\naddresses = {json.dumps(ADDRESSES)}\n'
        '[[device.impair]]\nkind = "drop"\nports = [1]\nstart = 0.3\nend = 0.6\n'
    )
    result = run([program(tmp_path, "ev_events")], OPENMRC_CONFIG=config, OPENMRC_DEVICES="")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "compiler",
    [["cc", "-std=gnu11"], ["cc", "-std=c17"], ["c++", "-x", "c++", "-std=c++17"], ["clang"]],
    ids=" ".join,
)
def test_headers_and_layouts(compiler):
    need_compiler()
    need_tool(compiler[0], compiler[0])
    # C++ has no compound literals, of which verbs' own header knows nothing either.
    strict = STRICT if "c++" not in compiler[0] else STRICT[:-1]
    for used in (None, "MRC_API_VER_LATEST", "MRC_API_VER(1,0,0)", "MRC_API_VER(1,0,1)"):
        versions = []
        if used is not None:
            control = used.replace("MRC_API", "MRC_CTL_API")
            versions = [f"-DMRC_API_VER_USED={used}", f"-DMRC_CTL_API_VER_USED={control}"]
        built = compile_c([*compiler, *strict], *versions, "-c", str(SOURCES / "layout.c"), "-o", "/dev/null")
        assert built.returncode == 0, built.stderr


@pytest.mark.parametrize("macro", ["MRC_API", "MRC_VENDOR_API", "MRC_CTL_API", "MRC_CTL_VENDOR_API"])
def test_a_header_refuses_a_newer_version_than_its_own(macro):
    need_compiler()
    newer = f"-D{macro}_VER_USED=0x02000000"
    built = compile_c(["cc"], newer, "-c", str(SOURCES / "layout.c"), "-o", "/dev/null")
    assert built.returncode != 0
    assert f"{macro}_VER_USED is newer" in built.stderr


def exported():
    """Every symbol that the library gives to programs."""
    need_tool("nm", "binutils")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", clibrary.library()], capture_output=True, text=True, check=True
    ).stdout
    return sorted(line.split()[-1] for line in listed.splitlines())


def test_symbols_change_only_on_purpose():
    """A symbol that is missing breaks programs; one too many may take the place of a program's own."""
    assert exported() == (SOURCES / "symbols.txt").read_text().split()


def test_every_function_of_the_headers_is_in_the_library():
    header = "".join((clibrary.include_directory() / name).read_text() for name in ("mrc.h", "mrc_ctl.h"))
    declared = set(re.findall(r"^\w[\w \*]*?\**(mrc_\w+)\(", header, re.MULTILINE))
    assert len(declared) == 27 + 14
    assert declared <= set(exported())


def test_all_names_of_the_library_are_one_file():
    directory = clibrary.library_directory()
    inodes = {(directory / name).stat().st_ino for name in (clibrary.SONAME, *clibrary.LINKS)}
    assert len(inodes) == 1
    assert (directory / "mrc.h").read_bytes() == (clibrary.include_directory() / "mrc.h").read_bytes()


def test_names_are_made_elsewhere_where_the_package_cannot_be_written(tmp_path, monkeypatch):
    made = clibrary._linked

    def refuse(directory, source):
        if directory == source.parent:
            raise PermissionError(directory)
        return made(directory, source)

    monkeypatch.setattr(clibrary, "_linked", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = clibrary.library_directory()
    assert directory == tmp_path / "openmrc" / "lib"
    assert (directory / "libmrc.so").resolve() == clibrary.library()


def test_the_library_is_never_unloaded_and_inert_until_it_is_used():
    need_tool("readelf", "binutils")
    flags = subprocess.run(
        ["readelf", "-d", clibrary.library()], capture_output=True, text=True, check=True
    ).stdout
    assert "NODELETE" in flags
    assert "[libopenmrc.so.0]" in flags
    look = "import os; print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))"
    plain = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    loaded = subprocess.run(
        [sys.executable, "-c", look],
        env=clibrary.preloaded(with_device()),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (loaded.stdout, loaded.stderr) == (plain.stdout, "")


@pytest.fixture
def in_a_place_with_special_letters(tmp_path, monkeypatch):
    """The library at a path that LD_PRELOAD would split, and no link to it yet."""
    place = tmp_path / "my $HOME: work"
    place.mkdir()
    link = place / clibrary.SONAME
    link.symlink_to(clibrary.library())
    (place / "libibverbs").symlink_to(clibrary.libibverbs_directory())
    monkeypatch.setattr(clibrary, "library", lambda: link)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return runtime / f"openmrc-{os.geteuid()}"


def test_programs_get_the_library_from_a_path_with_spaces_and_colons(in_a_place_with_special_letters):
    for _ in range(2):
        environment = clibrary.preloaded({"LD_PRELOAD": "libc.so.6", "PATH": os.environ["PATH"]})
        assert environment["LD_PRELOAD"].startswith(str(in_a_place_with_special_letters))
        assert (Path(environment["LD_LIBRARY_PATH"]) / "libibverbs.so.1").is_file()
        done = subprocess.run(
            ["cat", "/proc/self/maps"], env=environment, capture_output=True, text=True, check=True
        )
        assert clibrary.SONAME in done.stdout
        assert done.stderr == ""
    assert in_a_place_with_special_letters.stat().st_mode & 0o777 == 0o700
    assert len(list(in_a_place_with_special_letters.iterdir())) == 2


def test_without_a_private_place_for_the_link_the_program_does_not_run(
    in_a_place_with_special_letters, monkeypatch
):
    in_a_place_with_special_letters.mkdir()
    in_a_place_with_special_letters.chmod(0o777)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/nonexistent")
    monkeypatch.setattr(clibrary, "TEMPORARY", "/a place/with spaces")
    with pytest.raises(Error, match=r"split at spaces and colons, which .* has, and a link failed"):
        clibrary.preloaded({})


def test_a_file_takes_every_option_of_a_device(tmp_path):
    def toml(value):
        if isinstance(value, dict):
            return f"{{ {', '.join(f'{name} = {code}' for name, code in value.items())} }}"
        return json.dumps(value)

    options = {name: option["default"] for name, option in _core.DEVICE_OPTIONS.items()}
    options |= {
        "evs_per_port": 2,
        "fixed_window": 1 << 20,
        "cpu": 0,
        "seed": 7,
        "io_uring": True,
        "raise_descriptor_limit": False,
    }
    lines = [f"{name} = {toml(value)}" for name, value in options.items()]
    config = "\n".join(["[[device]]", 'name = "mrc0"', f"addresses = {json.dumps(ADDRESSES)}", *lines])
    result = run([program(tmp_path, "pingpong")], OPENMRC_CONFIG=config, OPENMRC_DEVICES="")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("OPENMRC_DEVICES", "mrc0", "name=address"),
        ("OPENMRC_DEVICES", "mrc0=nowhere", "no IP address"),
        ("OPENMRC_DEVICES", "mrc0=127.1.1.1,::1", "IPv4"),
        ("OPENMRC_DEVICES", "a=127.1.1.1;a=127.2.1.1", "two devices"),
        ("OPENMRC_CONFIG", "/nonexistent", "/nonexistent"),
        ("OPENMRC_CONFIG", "/dev/zero", "a regular file is expected"),
        ("OPENMRC_CONFIG", '[[device]]\nname = "x"\naddresses = ["127.1.1.1"]\nspeed = 1\n', "speed"),
        ("OPENMRC_CONFIG", '[[device]]\nname = "x"\naddresses = ["127.1.1.1"]\nev_burst = 0\n', "ev_burst"),
        (
            "OPENMRC_CONFIG",
            '[[device]]\nname = "x"\naddresses = ["127.1.1.1", "127.2.1.1"]\n'
            '[[device.impair]]\nkind = "drop"\nports = [9]\n',
            "port 9 cannot be impaired: this device has ports 0 to 1",
        ),
    ],
)
def test_a_bad_description_of_devices_is_refused_in_one_line(tmp_path, variable, value, word):
    settings = {"OPENMRC_DEVICES": "", variable: value}
    result = run([program(tmp_path, "hello")], **settings)
    assert result.returncode == 1
    first, second = result.stderr.splitlines()
    assert first.startswith("openmrc: ")
    assert word in first
    assert "Invalid argument" in second


def test_a_child_of_a_fork_gets_errors_and_nothing_hangs():
    """Its device belongs to the parent, whose threads it does not have."""
    script = """
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1], use_errno=True)
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd"):
    getattr(lib, name).restype = ctypes.c_void_p
devices = ctypes.cast(lib.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
context = lib.ibv_open_device(ctypes.c_void_p(devices[0]))
assert context and lib.ibv_alloc_pd(ctypes.c_void_p(context))
child = os.fork()
if child == 0:
    none = lib.ibv_alloc_pd(ctypes.c_void_p(context))
    os._exit(0 if none is None and ctypes.get_errno() == 5 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert lib.ibv_alloc_pd(ctypes.c_void_p(context))
"""
    result = run([sys.executable, "-W", "ignore", "-c", script, clibrary.library()])
    assert result.returncode == 0, result.stderr


def test_a_buffer_that_is_too_short_for_a_path_ends_the_program_as_in_the_c_library():
    script = """
import ctypes
libc = ctypes.CDLL(None)
libc.ibv_get_device_list.restype = ctypes.c_void_p
libc.ibv_get_device_list(None)
whole = ctypes.create_string_buffer(b"x" * 4096)
check = libc["__realpath_chk"]
check.restype, check.argtypes = ctypes.c_char_p, (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
assert check(b"/sys/class/infiniband/mrc0/device", whole, 4096).startswith(b"/")
check(b"/sys/class/infiniband/mrc0/device", whole, 8)
"""
    found = run([sys.executable, "-c", script], LD_PRELOAD=str(clibrary.library()))
    assert found.returncode == -signal.SIGABRT, found.stderr
    assert "buffer overflow" in found.stderr


def test_files_of_a_device_under_sysfs():
    """A program that has listed the devices finds files of theirs, and all other files as before."""
    script = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.ibv_get_device_list.restype = ctypes.c_void_p
libc.realpath.restype = ctypes.c_char_p
libc.ibv_get_device_list(None)
base = "/sys/class/infiniband/mrc0/"
for name in ("ports/1/gid_attrs/types/0", "node_type", "ports/1/gids/3"):
    print(open(base + name).read().strip())
print(libc.realpath((base + "device").encode(), None).decode())
print(open("/proc/self/comm").read().strip())
open(base + "nonesuch")
"""
    looked = [sys.executable, "-c", script]
    found = run(looked, LD_PRELOAD=str(clibrary.library()))
    types, node, gid, place, name = found.stdout.splitlines()
    assert (types, node, gid) == ("RoCE v2", "1: CA", IPv6Address(f"::ffff:{ADDRESSES[0]}").exploded)
    assert re.search(r"....:..:..\..$", place)
    assert name.startswith("python")
    assert "No such file" in found.stderr
    off = run(looked, LD_PRELOAD=str(clibrary.library()), OPENMRC_SYSFS="0")
    assert off.stdout == ""


@pytest.mark.parametrize(
    "name",
    [
        "hello",
        "registration",
        pytest.param("application", marks=pytest.mark.long),
        pytest.param("controller", marks=pytest.mark.long),
    ],
)
def test_valgrind_sees_no_errors(tmp_path, name):
    need_tool("valgrind", "valgrind")
    checked = run(["valgrind", "-q", "--error-exitcode=9", program(tmp_path, name)])
    assert checked.returncode == 0, checked.stderr


def test_the_library_loads_without_libibverbs():
    """A program that is linked to it needs no other library of verbs."""
    ctypes.CDLL(str(clibrary.library()))
    if shutil.which("readelf"):
        needed = subprocess.run(
            ["readelf", "-d", clibrary.library()], capture_output=True, text=True, check=True
        ).stdout
        assert "libibverbs" not in needed
