//! Capture files, pcap and pcapng, packet by packet.

use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Initial buffer. It grows to the largest block of the file.
const BUFFER: usize = 1 << 16;
/// Longest block. A longer one is a damaged length field (tcpdump's largest snapshot is 256 KiB).
const MAX_BLOCK: usize = 1 << 24;

const NS_PER_S: i128 = 1_000_000_000;

/// A Python file object, opened for reading bytes.
struct PyFile(Py<PyAny>);

impl Read for PyFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let bytes = self.0.bind(py).call_method1("read", (buf.len(),))?;
            let bytes = bytes.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes();
            buf.get_mut(..bytes.len())
                .ok_or_else(|| PyValueError::new_err("read() returned more than it was asked for"))?
                .copy_from_slice(bytes);
            Ok(bytes.len())
        })
        .map_err(|error: PyErr| io::Error::other(error))
    }
}

/// The properties of an interface that the time and link type of its packets depend on.
#[derive(Clone, Copy)]
struct Interface {
    linktype: u32,
    snaplen: u32,
    /// Units per second.
    resolution: u64,
    /// Seconds.
    offset: i64,
}

struct State {
    reader: Box<dyn PcapReaderIterator + Send>,
    interfaces: Vec<Interface>,
    capacity: usize,
    packets: u64,
    /// Set after an error or the end of the file.
    finished: bool,
}

/// One packet: nanoseconds since 1970, link type, bytes on the wire, bytes kept.
type Captured<'py> = (i64, u32, usize, Bound<'py, PyBytes>);

/// Reads a capture file, pcap or pcapng, of either byte order and any time resolution. An iterator of
/// (time in ns since 1970, link type, bytes on the wire, bytes kept). Raises `ValueError` if the file is not a capture,
/// is damaged, or ends within a packet.
#[pyclass(frozen)]
pub struct CaptureReader {
    state: Mutex<State>,
}

#[pymethods]
impl CaptureReader {
    #[new]
    fn new(file: Py<PyAny>) -> PyResult<Self> {
        let reader = create_reader(BUFFER, PyFile(file)).map_err(|error| match error {
            PcapError::Eof => PyValueError::new_err("the file is empty"),
            PcapError::ReadError => PyValueError::new_err("the file cannot be read"),
            _ => PyValueError::new_err("neither pcap nor pcapng"),
        })?;
        let state = State { reader, interfaces: Vec::new(), capacity: BUFFER, packets: 0, finished: false };
        Ok(CaptureReader { state: Mutex::new(state) })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Captured<'py>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = state.next_packet(py);
        if !matches!(result, Ok(Some(_))) {
            state.finished = true;
        }
        result
    }
}

impl State {
    fn next_packet<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Captured<'py>>> {
        while !self.finished {
            let problem = match self.reader.next() {
                Ok((len, block)) => {
                    let packet = read_block(py, &block, &mut self.interfaces);
                    self.reader.consume(len);
                    match packet {
                        Ok(Some(packet)) => {
                            self.packets += 1;
                            return Ok(Some(packet));
                        }
                        Ok(None) => continue,
                        Err(problem) => problem,
                    }
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(_)) => match self.reader.refill() {
                    Ok(()) => continue,
                    Err(_) => "the file cannot be read",
                },
                Err(PcapError::BufferTooSmall) if self.capacity < MAX_BLOCK => {
                    self.capacity *= 2;
                    self.reader.grow(self.capacity);
                    match self.reader.refill() {
                        Ok(()) => continue,
                        Err(_) => "the file cannot be read",
                    }
                }
                Err(PcapError::UnexpectedEof) => "the file ends within a packet",
                Err(PcapError::ReadError) => "the file cannot be read",
                Err(_) => "the file is damaged",
            };
            return Err(PyValueError::new_err(format!("{problem}, after packet {}", self.packets)));
        }
        Ok(None)
    }
}

/// The packet in a block; `None` if the block has none.
///
/// # Errors
/// What is wrong with the block.
fn read_block<'py>(
    py: Python<'py>,
    block: &PcapBlockOwned<'_>,
    interfaces: &mut Vec<Interface>,
) -> Result<Option<Captured<'py>>, &'static str> {
    const UNKNOWN_INTERFACE: &str = "a packet names an interface that the file does not describe";
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let resolution = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
            // The high bits describe frame check sequences, not the link type.
            let linktype = header.network.0 as u32 & 0xFFFF;
            interfaces.push(Interface { linktype, snaplen: header.snaplen, resolution, offset: 0 });
        }
        PcapBlockOwned::Legacy(packet) => {
            let interface = interfaces.first().ok_or(UNKNOWN_INTERFACE)?;
            let units = u64::from(packet.ts_sec) * interface.resolution + u64::from(packet.ts_usec);
            return Ok(Some(captured(py, interface, units, packet.origlen, packet.data)));
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(description)) => interfaces.push(Interface {
            linktype: description.linktype.0 as u32,
            snaplen: description.snaplen,
            resolution: resolution(description.if_tsresol)
                .ok_or("an interface has an impossible time resolution")?,
            offset: description.ts_offset(),
        }),
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let interface = interfaces.get(packet.if_id as usize).ok_or(UNKNOWN_INTERFACE)?;
            let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            return Ok(Some(captured(py, interface, units, packet.origlen, packet.packet_data())));
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let interface = interfaces.first().ok_or(UNKNOWN_INTERFACE)?;
            // A simple packet has no time. Its captured length is limited by the interface's snapshot length.
            let limit = if interface.snaplen == 0 { usize::MAX } else { interface.snaplen as usize };
            let data = packet.packet_data();
            return Ok(Some(captured(py, interface, 0, packet.origlen, &data[..data.len().min(limit)])));
        }
        PcapBlockOwned::NG(_) => {}
    }
    Ok(None)
}

/// Units per second of `if_tsresol`: a negative power of 10, or of 2 if the high bit is set. (pcap-parser 0.17 itself
/// refuses powers of 2.)
fn resolution(if_tsresol: u8) -> Option<u64> {
    let power = u32::from(if_tsresol & 0x7F);
    if if_tsresol & 0x80 == 0 { 10u64.checked_pow(power) } else { 1u64.checked_shl(power) }
}

fn captured<'py>(
    py: Python<'py>,
    interface: &Interface,
    units: u64,
    wire_len: u32,
    data: &[u8],
) -> Captured<'py> {
    let ns = i128::from(interface.offset) * NS_PER_S
        + i128::from(units) * NS_PER_S / i128::from(interface.resolution.max(1));
    let time = i64::try_from(ns).unwrap_or(i64::MAX);
    // Some writers set the length on the wire to zero.
    (time, interface.linktype, (wire_len as usize).max(data.len()), PyBytes::new(py, data))
}
