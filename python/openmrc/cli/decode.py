"""``openmrc decode``: MRC packets of a capture or of an interface, one line each."""

import contextlib
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from openmrc.cli import _common, _values
from openmrc.errors import ArgumentError
from openmrc.wire import UDP_PORTS, CaptureReader, Frame, LinkType, LiveCapture, Readings, read_pcap
from openmrc.wire import decode as decode_packet
from openmrc.wire.value import Value


def decode(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A pcap or pcapng file; - is standard input. With --follow: an interface.",
        ),
    ] = None,
    hexadecimal: Annotated[
        str | None, typer.Option("--hex", help="Instead of a file, the bytes of one packet in hexadecimal.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="FILE is an interface, or any for all of them: show packets to MRC's UDP ports as they "
            "come. Needs root or CAP_NET_RAW.",
        ),
    ] = False,
    ethernet: Annotated[
        bool,
        typer.Option("--ethernet", help="The bytes of --hex start with an Ethernet header instead of IP."),
    ] = False,
    ports: Annotated[
        list[int] | None,
        typer.Option(
            "--udp-port",
            help=f"UDP destination port; may be repeated. Default {' and '.join(map(str, UDP_PORTS))}.",
            **_values.port(1),
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after this many packets.")
    ] = None,
    mrc_only: Annotated[bool, typer.Option("--mrc", help="Show only packets to MRC's UDP ports.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every field of every header.")] = False,
    readings: Annotated[
        bool,
        typer.Option(
            "--readings",
            help="Count where the senders read MRC 1.0 differently from openmrc, instead of showing packets.",
        ),
    ] = False,
    json: _common.JsonOption = False,
) -> None:
    """Show packets of a capture or an interface: addresses, entropy value, opcode, queue pair, PSN.

    Each is one line. One that a receiver would drop has the reason and the counter for it. With --json each
    packet is one object, on a pipe one line; -v adds its payload. --readings shows where the senders read
    MRC 1.0 otherwise than openmrc: docs/interop.md explains the counts.

    --follow shows the packets of an interface until Ctrl-C or --count, each at once, and how many there were.
    """
    if (file is None) == (hexadecimal is None):
        raise ArgumentError(
            "give a capture file or --hex, not both" if file else "give a capture file, or --hex"
        )
    if follow and file is None:
        raise ArgumentError("--follow needs an interface: openmrc decode --follow eth0")
    mrc_ports = ports or UDP_PORTS
    with contextlib.ExitStack() as stack:
        frames: Iterable[Frame]
        if follow:
            frames = stack.enter_context(_live(str(file), mrc_ports))
            # The interface may carry the ssh connection that shows the packets.
            mrc_only = True
        elif hexadecimal is not None:
            linktype = LinkType.ETHERNET if ethernet else LinkType.RAW
            frames = [decode_packet(_bytes(hexadecimal), linktype, ports=mrc_ports)]
        elif str(file) == "-":
            frames = CaptureReader(sys.stdin.buffer, "standard input", ports=mrc_ports)
        else:
            frames = stack.enter_context(read_pcap(str(file), ports=mrc_ports))
        wanted = (each for each in enumerate(frames, start=1) if not mrc_only or _is_mrc(each[1]))
        if readings:
            _print_readings(islice(wanted, count), json=json)
        else:
            _print(islice(wanted, count), verbose=verbose, json=json, live=follow)


@contextlib.contextmanager
def _live(interface: str, ports: Sequence[int]) -> Iterator[Iterator[Frame]]:
    """Packets of an interface until a signal; then a summary on standard error."""
    with LiveCapture(interface, ports=ports) as capture:

        def stop(number: int, _: object) -> None:
            signal.signal(number, signal.SIG_DFL)  # The second one ends a write that nobody reads.
            capture.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        remarks = _common.console(stderr=True)
        remarks.print(f"following {interface}; Ctrl-C ends it")
        mrc = 0

        def counted() -> Iterator[Frame]:
            nonlocal mrc
            for frame in capture:
                mrc += _is_mrc(frame)
                yield frame

        yield counted()
        told = f"{interface}: {capture.received} packets received, {mrc} to MRC's ports"
        told += f", {capture.dropped} dropped by the kernel"
        remarks.print(f"{told}, {capture.unknown} not understood" if capture.unknown else told)


def _print_readings(frames: Iterable[tuple[int, Frame]], *, json: bool) -> None:
    seen = Readings()
    for _, frame in frames:
        seen.see(frame)
    if json:
        _common.print_json(dict(seen.counts))
    for name, number in sorted(seen.counts.items() if not json else ()):
        print(f"{number:>9}  {name}")


def _print(frames: Iterable[tuple[int, Frame]], *, verbose: bool, json: bool, live: bool) -> None:
    start: int | None = None
    for number, frame in frames:
        if start is None:
            start = frame.time_ns
        if json:
            fields = _as_json(number, frame, with_payload=verbose)
            _common.print_json_line(fields) if live else _common.print_json(fields)
            continue
        lines = [f"{number:>5}  {_seconds(frame.time_ns, start)}  {frame}"]
        if verbose:
            lines += [f"         {line}" for line in _details(frame)]
        print("\n".join(lines), flush=live)


def _is_mrc(frame: Frame) -> bool:
    """Whether a packet was sent to the port, valid or not."""
    return frame.bth is not None or frame.packet is not None


def _as_json(number: int, frame: Frame, *, with_payload: bool) -> dict[str, Any]:
    fields = frame.to_dict()
    if fields["packet"] is not None and not with_payload:
        del fields["packet"]["payload"]
    return {"number": number, "ok": frame.ok, "summary": str(frame), **fields}


def _bytes(text: str) -> bytes:
    cleaned = text.translate(str.maketrans("", "", " \t\n:-")).removeprefix("0x")
    try:
        return bytes.fromhex(cleaned)
    except ValueError:
        raise ArgumentError("--hex needs pairs of hexadecimal digits, such as 6b800000...") from None


def _seconds(time_ns: int | None, start_ns: int | None) -> str:
    """Time since the first packet shown, in seconds."""
    if time_ns is None or start_ns is None:
        return f"{'-':>12}"
    return f"{(time_ns - start_ns) / 1e9:12.6f}"


def _details(frame: Frame) -> Iterator[str]:
    """One line per layer, outermost first."""
    outer = frame.outer
    layers: list[tuple[str, Value | None]] = [
        ("Ethernet", frame.ethernet),
        ("outer IPv6", outer and outer.ip),
        ("SRH", outer and outer.srh),
        (type(frame.ip).__name__, frame.ip),
        ("UDP", frame.udp),
        ("BTH", frame.bth),
        ("body", frame.packet and frame.packet.body),
    ]
    for name, layer in layers:
        if layer is not None:
            if name == "body":
                name = type(layer).__name__
            fields = " ".join(f"{field} {value}" for field, value in layer.flat_fields())
            yield f"{name:<11}{fields}".rstrip()
    if frame.payload_len:
        yield f"{'payload':<11}{frame.payload_len} bytes{', cut by the capture' if frame.cut else ''}"
    if frame.packet is not None:
        yield f"{'iCRC':<11}{frame.icrc}"
