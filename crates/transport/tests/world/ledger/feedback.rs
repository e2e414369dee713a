//! Rules for feedback: the responder must not report more than has arrived, and the requestor must not retransmit what
//! was reported.

use openmrc_wire::{Mark, Packet, Psn, Sack};

use super::{Flow, Verdict};

impl Flow {
    /// The responder sends a SACK.
    pub fn on_sack_sent(&mut self, sack: &Sack) -> Verdict {
        let name = &self.name;
        rule!(sack.mark != Mark::AlwaysSkip, "{name}: SACK says ALWAYS_SKIP");
        self.counters.sacks += 1;
        let cumulative = self.number_after(sack.cack_psn);
        rule!(
            cumulative.is_some_and(|n| n <= self.prefix),
            "{name}: SACK says everything up to PSN {} has arrived; {} packets have",
            sack.cack_psn,
            self.prefix
        );
        let base = sack.cack_psn.offset(i32::from(sack.sack_offset));
        for bit in (0..64).filter(|bit| sack.bitmap >> bit & 1 == 1) {
            let psn = base.offset(bit);
            let before_start = self.number_after(psn).is_none_or(|n| n == 0);
            let arrived =
                self.number(psn).and_then(|n| self.packets.get(n as usize)).is_some_and(|p| p.arrived);
            rule!(arrived || before_start, "{name}: SACK says PSN {psn} has arrived; it has not");
        }
        let rcvd = sack.cc.rcvd_bytes;
        if let Some(last) = self.last_rcvd {
            let growth = rcvd.wrapping_sub(last) & 0xFF_FFFF;
            rule!(growth < 1 << 23, "{name}: rcvd_bytes went back from {last} to {rcvd}");
        }
        self.last_rcvd = Some(rcvd);
        Ok(())
    }

    /// The requestor probes a path by a duplicate of full size: only of what is known to have arrived.
    /// A proof of the path MTU sends some without payload too.
    pub fn on_duplicate_sent(&mut self, packet: &Packet, proves: bool) -> Verdict {
        let name = &self.name;
        let known = self.deceived || self.number_after(packet.psn).is_some_and(|n| n <= self.acknowledged);
        rule!(known, "{name}: PSN {} is sent again as a probe and is not known to have arrived", packet.psn);
        let len = u32::from(packet.payload_len);
        rule!(len == self.mtu || proves && len == 0, "{name}: a probe of {} bytes", packet.payload_len);
        Ok(())
    }

    /// The packet number of a PSN plus one: zero for the PSN before the first.
    pub(super) fn number_after(&self, psn: Psn) -> Option<u64> {
        self.number(psn.next())
    }

    /// The responder sends an acknowledgement of `msn` messages.
    pub fn on_ack_sent(&mut self, msn: u32) -> Verdict {
        let ahead = (msn.wrapping_sub(self.complete as u32) << 8) as i32 >> 8;
        rule!(ahead <= 0, "{}: ACK of {msn} messages, {} are complete", self.name, self.complete);
        let undelivered = (self.received..self.complete.saturating_add_signed(ahead as isize))
            .find(|&i| self.messages[i].imm.is_some() && !self.messages[i].received);
        rule!(
            undelivered.is_none(),
            "{}: ACK of {msn} messages before an immediate was delivered",
            self.name
        );
        Ok(())
    }

    /// Whether a genuine SACK lies more than a window below what is acknowledged: the requestor ignores it.
    pub fn is_from_long_ago(&self, sack: &Sack) -> bool {
        let window = self.own_mpr.next_power_of_two();
        self.number_after(sack.cack_psn).is_some_and(|cumulative| cumulative + window < self.acknowledged)
    }

    /// Whether the requestor has not sent a packet with this PSN yet.
    pub fn is_unsent(&self, psn: Psn) -> bool {
        self.number(psn).is_some_and(|number| number >= self.next_new)
    }

    /// A genuine SACK reaches the requestor.
    pub fn on_sack_heard(&mut self, sack: &Sack) {
        if sack.mpr > 0 {
            let told = u64::from(sack.mpr) * 128;
            self.told_mpr = Some(self.told_mpr.map_or(told, |before| before.max(told)));
        }
        if let Some(cumulative) = self.number_after(sack.cack_psn) {
            self.acknowledge(cumulative);
        }
        let base = sack.cack_psn.offset(i32::from(sack.sack_offset));
        for bit in (0..64).filter(|bit| sack.bitmap >> bit & 1 == 1) {
            let number = self.number(base.offset(bit));
            if let Some(packet) = number.and_then(|n| self.packets.get_mut(n as usize)) {
                packet.reported = true;
            }
        }
    }

    /// A genuine acknowledgement of `msn` messages reaches the requestor: their packets have all arrived. The
    /// acknowledgement of a NAK has no cumulative PSN.
    pub fn on_ack_heard(&mut self, msn: u32, cumulative: Option<Psn>) {
        if let Some(cumulative) = cumulative.and_then(|psn| self.number_after(psn)) {
            self.acknowledge(cumulative);
            self.acked = self.acked.max(cumulative);
        }
        let ahead = (msn.wrapping_sub(self.complete as u32) << 8) as i32 >> 8;
        let messages = self.complete.saturating_add_signed(ahead as isize);
        if let Some(last) = messages.checked_sub(1).and_then(|i| self.messages.get(i)) {
            let end = last.first + u64::from(last.packets);
            self.acknowledge(end);
            self.acked = self.acked.max(end);
        }
    }

    pub(super) fn acknowledge(&mut self, cumulative: u64) {
        for number in self.acknowledged..cumulative {
            self.packets[number as usize].reported = true;
        }
        self.acknowledged = self.acknowledged.max(cumulative);
    }
}
