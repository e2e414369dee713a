//! [`Packet`] to bytes and back: the bytes of a UDP payload, from the BTH to the iCRC (docs/spec/wire.md, "Opcodes and
//! header order").
//!
//! Sending: [`Packet::emit`] writes the headers; the caller appends payload, [`Packet::pad_len`] zero bytes and the
//! iCRC. Receiving: [`Packet::parse`] returns the packet and borrows its payload. The iCRC also covers the IP header,
//! so [`crate::Icrc`] checks it separately.

use crate::bth::{self, Bth, opcode, write_index, write_position};
use crate::bytes::{room, take};
use crate::error::DecodeError;
use crate::packet::{Body, Packet, RcWrite, Write};
use crate::seq::Psn;
use crate::{endpoint, icrc, rdma, reliability};

/// Bytes after the BTH of a congestion notification packet, all reserved (IBTA RoCEv2 annex, A17.9.3).
pub const CNP_RESERVED_LEN: usize = 16;

/// The longest headers of any packet: a BTH with SETH and CC_STATE, or with EETH.
pub const MAX_HEADER_LEN: usize = bth::LEN + reliability::SACK_LEN;
/// Bytes around the payload of a data packet with the longest headers, inside UDP and without padding.
pub const DATA_OVERHEAD: usize =
    bth::LEN + rdma::METH_LEN + rdma::TSETH_LEN + rdma::RETH_LEN + rdma::IMM_LEN + icrc::LEN;

impl Body {
    /// Bytes of the extension headers of a packet that is no MRC data packet. A call of its own, so that the length of
    /// data packets, the only one that is needed all the time, is found without a table of jumps.
    #[inline(never)]
    const fn extension_len(&self) -> usize {
        match self {
            // [`Packet::header_len`] has those of data packets.
            Body::Write(_) => 0,
            Body::Ack(_) | Body::RcAck(_) => rdma::AETH_LEN,
            Body::EndpointRequest(_) => endpoint::ERTH_LEN,
            Body::EndpointResponse(_) => endpoint::EETH_LEN,
            Body::Sack(_) => reliability::SACK_LEN,
            Body::Nack(_) => reliability::NACK_LEN,
            Body::Probe(_) => reliability::PROBE_LEN,
            Body::RcWrite(w) => {
                (if w.position.is_first() { rdma::RETH_LEN } else { 0 })
                    + if w.imm.is_some() && w.position.is_last() { rdma::IMM_LEN } else { 0 }
            }
            Body::Cnp => CNP_RESERVED_LEN,
        }
    }
}

impl Packet {
    /// BTH opcode. An immediate on First or Middle has no opcode and is left out.
    #[inline]
    pub const fn opcode(&self) -> u8 {
        match &self.body {
            Body::Write(w) => opcode::WRITE_FIRST + write_index(w.position, w.imm.is_some()),
            Body::Ack(_) => opcode::ACK,
            Body::EndpointRequest(_) => opcode::ENDPOINT_REQUEST,
            Body::EndpointResponse(_) => opcode::ENDPOINT_RESPONSE,
            Body::Sack(_) => opcode::SACK,
            Body::Nack(_) => opcode::NACK,
            Body::Probe(_) => opcode::PROBE,
            Body::RcWrite(w) => opcode::RC_WRITE_FIRST + write_index(w.position, w.imm.is_some()),
            Body::RcAck(_) => opcode::RC_ACK,
            Body::Cnp => opcode::CNP,
        }
    }

    /// Whether this packet may carry payload.
    #[inline]
    pub const fn is_data(&self) -> bool {
        matches!(self.body, Body::Write(_) | Body::RcWrite(_))
    }

    /// Bytes of BTH and extension headers.
    #[inline]
    pub const fn header_len(&self) -> usize {
        bth::LEN
            + match &self.body {
                Body::Write(w) => {
                    rdma::METH_LEN
                        + if w.timestamp.is_some() { rdma::TSETH_LEN } else { 0 }
                        + rdma::RETH_LEN
                        + if w.imm.is_some() && w.position.is_last() { rdma::IMM_LEN } else { 0 }
                }
                other => other.extension_len(),
            }
    }

    /// Zero bytes that pad the payload to a multiple of four (BTH.PadCnt).
    #[inline]
    pub const fn pad_len(&self) -> usize {
        (self.payload_len.wrapping_neg() & 3) as usize
    }

    /// Bytes of the whole UDP payload: headers, payload, padding, iCRC.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.header_len() + self.payload_len as usize + self.pad_len() + icrc::LEN
    }

    /// Writes BTH and extension headers to the front of `buf` and returns their length, [`Self::header_len`].
    /// Returns 0 if they do not fit; the contents of `buf` are undefined then. [`MAX_HEADER_LEN`] bytes always fit.
    ///
    /// Values wider than their field lose their high bits.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        match self.emit_into(buf) {
            Some(()) => self.header_len(),
            None => 0,
        }
    }

    #[inline]
    fn emit_into(&self, mut buf: &mut [u8]) -> Option<()> {
        let buf = &mut buf;
        let bth = Bth {
            opcode: self.opcode(),
            solicited: self.solicited,
            // MRC has no path migration.
            migrated: self.migrated && self.is_rocev2(),
            pad: self.pad_len() as u8,
            tver: 0,
            pkey: self.pkey,
            variant: self.variant,
            dest_qp: self.dest_qp,
            ack_req: self.ack_req,
            rtx: self.rtx && !self.is_rocev2(),
            ts: matches!(self.body, Body::Write(Write { timestamp: Some(_), .. })),
            psn: self.psn.get(),
        };
        bth.emit(room(buf)?);
        match &self.body {
            Body::Write(w) => {
                rdma::emit_meth(room(buf)?, w.rqmsn, w.msn);
                if let Some(timestamp) = w.timestamp {
                    rdma::emit_tseth(room(buf)?, timestamp);
                }
                rdma::emit_reth(room(buf)?, w.va, w.rkey, w.dma_len);
                if let (Some(imm), true) = (w.imm, w.position.is_last()) {
                    *room(buf)? = imm.to_be_bytes();
                }
            }
            Body::Ack(aeth) | Body::RcAck(aeth) => rdma::emit_aeth(room(buf)?, aeth),
            Body::EndpointRequest(erth) => endpoint::emit_erth(room(buf)?, erth),
            Body::EndpointResponse(eeth) => endpoint::emit_eeth(room(buf)?, eeth),
            Body::Sack(sack) => reliability::emit_sack(room(buf)?, sack),
            Body::Nack(nack) => reliability::emit_nack(room(buf)?, nack),
            Body::Probe(probe) => reliability::emit_probe(room(buf)?, probe),
            Body::RcWrite(w) => {
                if w.position.is_first() {
                    rdma::emit_reth(room(buf)?, w.va, w.rkey, w.dma_len);
                }
                if let (Some(imm), true) = (w.imm, w.position.is_last()) {
                    *room(buf)? = imm.to_be_bytes();
                }
            }
            Body::Cnp => *room(buf)? = [0; CNP_RESERVED_LEN],
        }
        Some(())
    }

    /// Whether this is a RoCEv2 packet, not an MRC packet.
    #[inline]
    pub const fn is_rocev2(&self) -> bool {
        matches!(self.body, Body::RcWrite(_) | Body::RcAck(_) | Body::Cnp)
    }

    /// Reads a whole UDP payload, from BTH to iCRC, and returns the packet and its payload without padding.
    /// The iCRC is not checked here.
    ///
    /// # Errors
    /// [`DecodeError`] has a variant for each cause.
    #[inline]
    pub fn parse(udp_payload: &[u8]) -> Result<(Packet, &[u8]), DecodeError> {
        let Some((covered, _icrc)) = udp_payload.split_last_chunk::<{ icrc::LEN }>() else {
            return Err(DecodeError::TooShort { what: "iCRC", needed: icrc::LEN, have: udp_payload.len() });
        };
        let (mut packet, pad, rest) = parse_headers(covered, false)?;
        if !packet.is_data() && !rest.is_empty() {
            return Err(DecodeError::UnexpectedPayload { opcode: packet.opcode(), len: rest.len() });
        }
        if pad as usize > rest.len() {
            return Err(DecodeError::BadPad { pad, have: rest.len() });
        }
        if rest.len() % 4 != 0 {
            return Err(DecodeError::Unaligned(rest.len()));
        }
        let payload = &rest[..rest.len() - pad as usize];
        packet.payload_len = match u16::try_from(payload.len()) {
            Ok(len) => len,
            Err(_) => return Err(DecodeError::TooLong(udp_payload.len())),
        };
        Ok((packet, payload))
    }

    /// Reads the UDP payload of a packet that a switch has trimmed: it has BTH, METH, TSETH and RETH, but neither
    /// payload nor iCRC, and `payload_len` is 0. A switch that cuts to a fixed size may leave a part of the payload,
    /// which is ignored. An immediate that was cut off reads as `Some(0)`: the opcode says that there was one, and its
    /// value must not be used.
    ///
    /// # Errors
    /// As [`Self::parse`], but padding and trailing bytes are not checked.
    #[inline]
    pub fn parse_trimmed(udp_payload: &[u8]) -> Result<Packet, DecodeError> {
        parse_headers(udp_payload, true).map(|(packet, _, _)| packet)
    }

    /// Reads an MRC write that a switch has cut below its RETH: BTH names queue pair and PSN, which is what a NACK
    /// needs. All that the other headers would say reads as zero or absent.
    ///
    /// # Errors
    /// As [`Self::parse`], and [`DecodeError::TooShort`] for what is not an MRC write.
    pub fn parse_bare_write(udp_payload: &[u8]) -> Result<Packet, DecodeError> {
        let mut bytes = [0; MAX_HEADER_LEN];
        let kept = udp_payload.len().min(bth::LEN);
        bytes[..kept].copy_from_slice(&udp_payload[..kept]);
        let opcode = udp_payload.first().copied().unwrap_or(0);
        if kept < bth::LEN || !(opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM).contains(&opcode) {
            return Err(DecodeError::TooShort { what: "trimmed write", needed: bth::LEN, have: kept });
        }
        let mut packet = Self::parse_trimmed(&bytes)?;
        if let Body::Write(write) = &mut packet.body {
            write.timestamp = None;
        }
        Ok(packet)
    }

    /// Reads a UDP payload whose end is missing in a capture: returns the packet with `payload_len` 0, and the bytes
    /// after its headers.
    pub(crate) fn parse_cut(udp_payload: &[u8]) -> Result<(Packet, &[u8]), DecodeError> {
        parse_headers(udp_payload, false).map(|(packet, _, rest)| (packet, rest))
    }
}

/// Reads BTH and extension headers; returns the packet (`payload_len` 0), BTH.PadCnt and the bytes after the headers.
#[inline(always)]
fn parse_headers(bytes: &[u8], trimmed: bool) -> Result<(Packet, u8, &[u8]), DecodeError> {
    let mut rest = bytes;
    let bth = Bth::parse(take(&mut rest, "BTH")?);
    if bth.tver != 0 {
        return Err(DecodeError::BadTver(bth.tver));
    }
    let rest = &mut rest;
    let body = match bth.opcode {
        opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM => {
            let (position, has_imm) = write_position(bth.opcode - opcode::WRITE_FIRST);
            let (rqmsn, msn) = rdma::parse_meth(take(rest, "METH")?);
            let timestamp = if bth.ts { Some(rdma::parse_tseth(take(rest, "TSETH")?)) } else { None };
            let (va, rkey, dma_len) = rdma::parse_reth(take(rest, "RETH")?);
            let imm = parse_imm(rest, has_imm, trimmed)?;
            Body::Write(Write { position, rqmsn, msn, timestamp, va, rkey, dma_len, imm })
        }
        opcode::SACK => Body::Sack(reliability::parse_sack(take(rest, "SETH and CC_STATE")?)?),
        opcode::ACK => Body::Ack(rdma::parse_aeth(take(rest, "AETH")?)),
        opcode::NACK => Body::Nack(reliability::parse_nack(take(rest, "NETH")?)?),
        opcode::PROBE => Body::Probe(reliability::parse_probe(take(rest, "PETH")?)?),
        opcode::ENDPOINT_REQUEST => Body::EndpointRequest(endpoint::parse_erth(take(rest, "ERTH")?)?),
        opcode::ENDPOINT_RESPONSE => Body::EndpointResponse(endpoint::parse_eeth(take(rest, "EETH")?)?),
        opcode::RC_WRITE_FIRST..=opcode::RC_WRITE_ONLY_IMM => {
            let (position, has_imm) = write_position(bth.opcode - opcode::RC_WRITE_FIRST);
            let (va, rkey, dma_len) =
                if position.is_first() { rdma::parse_reth(take(rest, "RETH")?) } else { (0, 0, 0) };
            let imm = parse_imm(rest, has_imm, trimmed)?;
            Body::RcWrite(RcWrite { position, va, rkey, dma_len, imm })
        }
        opcode::RC_ACK => Body::RcAck(rdma::parse_aeth(take(rest, "AETH")?)),
        opcode::CNP => {
            take::<CNP_RESERVED_LEN>(rest, "CNP")?;
            Body::Cnp
        }
        other => return Err(DecodeError::UnknownOpcode(other)),
    };
    let mut packet = Packet {
        dest_qp: bth.dest_qp,
        psn: Psn::new(bth.psn),
        pkey: bth.pkey,
        payload_len: 0,
        ack_req: bth.ack_req,
        rtx: bth.rtx,
        // Readings of MRC differ on which of the two bits is SE. A needless event is harmless, a missing one is not.
        solicited: bth.solicited || bth::is_mrc(bth.opcode) && bth.migrated,
        migrated: bth.migrated && !bth::is_mrc(bth.opcode),
        variant: bth.variant,
        body,
    };
    // Reserved in RoCEv2.
    packet.rtx &= !packet.is_rocev2();
    Ok((packet, bth.pad, rest))
}

#[inline(always)]
fn parse_imm(rest: &mut &[u8], has_imm: bool, trimmed: bool) -> Result<Option<u32>, DecodeError> {
    if !has_imm {
        return Ok(None);
    }
    match take::<{ rdma::IMM_LEN }>(rest, "ImmDt") {
        Ok(imm) => Ok(Some(u32::from_be_bytes(*imm))),
        Err(_) if trimmed => Ok(Some(0)),
        Err(error) => Err(error),
    }
}
