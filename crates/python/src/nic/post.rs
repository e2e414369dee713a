//! Work requests from Python: from a list of objects, or many writes from arrays of numbers.

use openmrc_nic::{OwnedSendData, OwnedSendWr, QpState, QueuePair, RecvWr, SendData, SendWr, Sge};
use pyo3::buffer::PyBuffer;
use pyo3::intern;
use pyo3::prelude::*;

use super::convert::{field, number, optional};
use super::error::{OrRaise, refused};

/// `openmrc.verbs.SendFlags`.
const SIGNALED: i64 = 2;
const SOLICITED: i64 = 4;
const INLINE: i64 = 8;

/// `openmrc.verbs.WrOpcode`.
const RDMA_WRITE: i64 = 0;
const RDMA_WRITE_WITH_IMM: i64 = 1;

/// Posting fewer requests than this takes less time than releasing the GIL.
const SHORT_LIST: usize = 16;

pub fn send(py: Python<'_>, qp: &QueuePair, requests: &[Bound<'_, PyAny>]) -> PyResult<()> {
    let requests = requests.iter().map(request).collect::<PyResult<Vec<_>>>()?;
    let list: Vec<SendWr<'_>> = requests.iter().map(OwnedSendWr::as_wr).collect();
    post(py, qp, list.len(), || qp.post_send(&list))
}

pub fn recv(py: Python<'_>, qp: &QueuePair, requests: &[Bound<'_, PyAny>]) -> PyResult<()> {
    let wr_id = |request: &Bound<'_, PyAny>| Ok(RecvWr { wr_id: field!(request, "wr_id", "0 to 2^64 - 1")? });
    let list = requests.iter().map(wr_id).collect::<PyResult<Vec<_>>>()?;
    post(py, qp, list.len(), || qp.post_recv(&list))
}

pub fn recv_many(py: Python<'_>, qp: &QueuePair, count: i64) -> PyResult<()> {
    let capacity = qp.cap().max_recv_wr as usize;
    let count = usize::try_from(count)
        .map_err(|_| refused(format!("{count} receives: 0 to {capacity} is allowed")))?;
    // One more than the capacity is enough to get the error, so the list is not made longer.
    let list = vec![RecvWr { wr_id: 0 }; count.min(capacity + 1)];
    post(py, qp, list.len(), || qp.post_recv(&list))
}

/// Posts; releases the GIL if that may take long.
fn post(
    py: Python<'_>,
    qp: &QueuePair,
    requests: usize,
    call: impl Send + FnOnce() -> openmrc_nic::Result<()>,
) -> PyResult<()> {
    // In ERROR the request is flushed, which needs the engine's lock.
    let quick = requests < SHORT_LIST && qp.state() != QpState::Error;
    if quick { call() } else { py.detach(call) }.or_raise()
}

/// What a `SendWR` asks for.
fn request(wr: &Bound<'_, PyAny>) -> PyResult<OwnedSendWr> {
    let py = wr.py();
    let flags: i64 = field!(wr, "send_flags", "a combination of SendFlags")?;
    let imm: Option<u32> = optional!(wr, "imm_data", "0 to 2^32 - 1")?;
    let opcode: Option<i64> = optional!(wr, "opcode", "a WrOpcode")?;
    match (opcode, imm) {
        (None, _) | (Some(RDMA_WRITE), None) | (Some(RDMA_WRITE_WITH_IMM), Some(_)) => {}
        (Some(RDMA_WRITE), Some(_)) => {
            return Err(refused("RDMA_WRITE carries no imm_data: use RDMA_WRITE_WITH_IMM"));
        }
        (Some(RDMA_WRITE_WITH_IMM), None) => return Err(refused("RDMA_WRITE_WITH_IMM needs imm_data")),
        (Some(other), _) => {
            return Err(refused(format!(
                "opcode {other}: RDMA_WRITE (0) and RDMA_WRITE_WITH_IMM (1) exist in MRC"
            )));
        }
    }
    let mut pieces = wr.getattr(intern!(py, "sg_list"))?.try_iter()?;
    let data = if flags & INLINE != 0 {
        let mut bytes = Vec::new();
        pieces.try_for_each(|piece| append_bytes(&piece?, &mut bytes))?;
        OwnedSendData::Inline(bytes)
    } else {
        OwnedSendData::Sges(pieces.map(|piece| sge(&piece?)).collect::<PyResult<_>>()?)
    };
    Ok(OwnedSendWr {
        wr_id: field!(wr, "wr_id", "0 to 2^64 - 1")?,
        remote_addr: field!(wr, "remote_addr", "0 to 2^64 - 1")?,
        rkey: field!(wr, "rkey", "0 to 2^32 - 1")?,
        imm,
        signaled: flags & SIGNALED != 0,
        solicited: flags & SOLICITED != 0,
        data,
    })
}

fn sge(piece: &Bound<'_, PyAny>) -> PyResult<Sge> {
    let Ok((addr, length, lkey)) = piece.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>()
    else {
        return Err(refused(format!(
            "a scatter list holds Sge (addr, length, lkey), not {}: register memory, or set SendFlags.INLINE for bytes",
            piece.get_type().name()?
        )));
    };
    Ok(Sge {
        addr: number(&addr, "addr of an Sge", "0 to 2^64 - 1")?,
        len: number(&length, "length of an Sge", "0 to 2^32 - 1")?,
        lkey: number(&lkey, "lkey of an Sge", "0 to 2^32 - 1")?,
    })
}

fn append_bytes(piece: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> PyResult<()> {
    // bytes(memoryview) accepts every layout; inline data are short.
    let view = pyo3::types::PyMemoryView::from(piece).map_err(|_| {
        let name = piece.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        refused(format!("with SendFlags.INLINE the scatter list holds bytes-like objects, not {name}"))
    })?;
    let bytes = view.call_method0(intern!(piece.py(), "tobytes"))?;
    out.extend_from_slice(bytes.extract()?);
    Ok(())
}

/// One number for all writes, or one per write.
pub enum Offsets {
    One(i64),
    Many(Vec<i64>),
}

impl<'py> FromPyObject<'_, 'py> for Offsets {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(one) = value.extract::<i64>() {
            return Ok(Offsets::One(one));
        }
        if let Ok(buffer) = PyBuffer::<i64>::get(&value) {
            if buffer.dimensions() != 1 {
                return Err(refused(format!(
                    "an array of {} dimensions: one is allowed",
                    buffer.dimensions()
                )));
            }
            return buffer.to_vec(value.py()).map(Offsets::Many);
        }
        let many: Vec<i64> = value.extract().map_err(|_| {
            refused(
                "lengths and offsets are whole numbers: one, or a sequence or one-dimensional array of them",
            )
        })?;
        Ok(Offsets::Many(many))
    }
}

impl Offsets {
    fn count(&self) -> Option<usize> {
        match self {
            Offsets::One(_) => None,
            Offsets::Many(list) => Some(list.len()),
        }
    }

    /// The number of write `i`. If only the first is given, each write adds `stride`.
    fn get(&self, i: usize, stride: i64) -> i128 {
        let base = match self {
            Offsets::One(first) => *first,
            Offsets::Many(list) => list[i],
        };
        i128::from(base) + i as i128 * i128::from(stride)
    }
}

/// The arguments of `post_writes`.
pub struct Writes {
    /// Address, length, lkey.
    pub source: (u64, u64, u32),
    /// Address, length, rkey.
    pub remote: (u64, u64, u32),
    pub length: Offsets,
    pub count: Option<i64>,
    pub offset: Offsets,
    pub remote_offset: Offsets,
    pub stride: i64,
    pub remote_stride: i64,
    pub wr_id: u64,
    pub signal_every: Option<i64>,
}

impl Writes {
    /// Posts all writes or none; returns how many.
    pub fn post(&self, py: Python<'_>, qp: &QueuePair) -> PyResult<usize> {
        let count = self.count(qp)?;
        let every = match self.signal_every {
            None => usize::MAX,
            Some(every) => usize::try_from(every)
                .ok()
                .filter(|&every| every > 0)
                .ok_or_else(|| refused(format!("signal_every is {every}: 1 or more, or None, is allowed")))?,
        };
        py.detach(|| {
            let sges = (0..count).map(|i| self.sge(i)).collect::<Result<Vec<_>, String>>()?;
            let list = sges
                .iter()
                .enumerate()
                .map(|(i, sge)| {
                    let offset = self.remote_offset.get(i, self.remote_stride);
                    let at = place(
                        i,
                        "the remote buffer",
                        (self.remote.0, self.remote.1),
                        offset,
                        i128::from(sge.len),
                    )?;
                    Ok(SendWr {
                        wr_id: self.wr_id.wrapping_add(i as u64),
                        data: SendData::Sges(std::slice::from_ref(sge)),
                        remote_addr: at,
                        rkey: self.remote.2,
                        imm: None,
                        signaled: (i + 1) % every == 0 || i + 1 == count,
                        solicited: false,
                    })
                })
                .collect::<Result<Vec<_>, String>>()?;
            Ok(qp.post_send(&list).map(|()| count))
        })
        .map_err(|message: String| refused(message))?
        .or_raise()
    }

    fn count(&self, qp: &QueuePair) -> PyResult<usize> {
        let given = [
            ("count", self.count.map(|count| usize::try_from(count).unwrap_or(usize::MAX))),
            ("length", self.length.count()),
            ("offset", self.offset.count()),
            ("remote_offset", self.remote_offset.count()),
        ];
        let mut known = given.iter().filter_map(|(name, count)| count.map(|count| (name, count)));
        let Some((first, count)) = known.next() else {
            return Err(refused("post_writes needs a count where length and offsets are single numbers"));
        };
        if let Some((other, differs)) = known.find(|(_, other)| *other != count) {
            return Err(refused(format!(
                "{first} says {count} writes, {other} has {differs}: they must agree"
            )));
        }
        let capacity = qp.cap().max_send_wr as usize;
        if count > capacity {
            return Err(refused(format!("{count} writes: the queue pair takes 0 to {capacity} at a time")));
        }
        Ok(count)
    }

    fn sge(&self, i: usize) -> Result<Sge, String> {
        let length = self.length.get(i, 0);
        let len = u32::try_from(length)
            .map_err(|_| format!("length of write {i} is {length}: 0 to 2^32 - 1 is allowed"))?;
        let (addr, total, lkey) = self.source;
        let addr = place(i, "the memory region", (addr, total), self.offset.get(i, self.stride), length)?;
        Ok(Sge { addr, len, lkey })
    }
}

/// Address of `length` bytes at `offset` of a buffer of (address, length), if they lie inside.
fn place(i: usize, what: &str, (addr, total): (u64, u64), offset: i128, length: i128) -> Result<u64, String> {
    if offset < 0 || offset + length > i128::from(total) {
        return Err(format!(
            "write {i}: {length} bytes at offset {offset} do not fit {what} of {total} bytes"
        ));
    }
    Ok(addr.wrapping_add(offset as u64))
}
