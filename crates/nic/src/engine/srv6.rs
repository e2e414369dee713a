//! SRv6 mode: frames to and from the packet sockets of the ports.
//!
//! A packet socket sends on all paths of its port, so what a turn has to send goes in one system call per port, however
//! many paths it is sprayed over.

use openmrc_transport::Time;
use openmrc_transport::mrc::LASTING_BURST;

use super::{Engine, Sent};
use crate::frames::{FrameBatch, FrameBuffer, send_one};
use crate::impairer::{Outgoing, is_data};
use crate::path::Via;
use crate::port::NOBUFS_PAUSE;
use crate::shared::Shared;
use crate::stats::Cause;
use crate::sys;
use crate::tx::RunKey;

impl Engine {
    /// Sends what every port has gathered.
    pub(super) fn flush_frames(&mut self, now: Time) {
        let mut batches = std::mem::take(&mut self.batches);
        for (port, batch) in batches.iter_mut().enumerate().filter(|(_, batch)| !batch.frames().is_empty()) {
            self.flush_batch(port, batch, now);
        }
        self.batches = batches;
    }

    /// Sends what one port has gathered.
    pub(super) fn flush_frames_of(&mut self, port: usize, now: Time) {
        let mut batches = std::mem::take(&mut self.batches);
        self.flush_batch(port, &mut batches[port], now);
        self.batches = batches;
    }

    fn flush_batch(&mut self, port: usize, batch: &mut FrameBatch, now: Time) {
        if !self.ports[port].is_up() {
            self.causes.add(Cause::TxNoPort, batch.frames().len() as u64);
        } else if self.impairer.is_active() {
            self.impair_batch(port, batch, now);
        } else {
            self.send_batch(port, batch, now);
        }
        batch.clear();
    }

    fn send_batch(&mut self, port: usize, batch: &mut FrameBatch, now: Time) {
        let mut next = 0;
        while next < batch.frames().len() {
            if !self.ports[port].held.is_empty() {
                for index in next..batch.frames().len() {
                    self.hold_frame(port, batch, index);
                }
                return;
            }
            match batch.send(self.ports[port].rx.tx_fd(), next) {
                Ok(sent) => {
                    for frame in &batch.frames()[next..next + sent] {
                        self.count_path(frame.key.path, 1, frame.bytes, now);
                    }
                    self.ports[port].stats.tx_calls += 1;
                    next += sent;
                }
                Err(error) => {
                    match self.judge(Err(error), now, false) {
                        Some(Sent::Later(_)) => {
                            self.hold_frame(port, batch, next);
                            self.ports[port].retry_at = now + NOBUFS_PAUSE;
                        }
                        Some(Sent::Lost(cause)) => self.causes.add(cause, 1),
                        Some(Sent::Done) | None => {}
                    }
                    next += 1;
                }
            }
        }
    }

    fn hold_frame(&mut self, port: usize, batch: &FrameBatch, index: usize) {
        let bytes = batch.datagram(index);
        let segment = bytes.len();
        self.hold(batch.frames()[index].key, port, bytes, segment);
    }

    /// The impairer's way: every packet by itself.
    fn impair_batch(&mut self, port: usize, batch: &FrameBatch, now: Time) {
        let mut out = std::mem::take(&mut self.impaired);
        for (index, frame) in batch.frames().iter().enumerate() {
            let ev = self.paths[usize::from(frame.key.path)].ev;
            let rules = self.impairer.draw(now, port as u8, ev, is_data(frame.opcode));
            let packet = Outgoing {
                path: frame.key.path,
                port: port as u8,
                ev,
                peer: frame.key.peer,
                class: frame.key.class,
                bytes: batch.datagram(index),
            };
            self.impairer.apply(now, packet, rules, &mut out);
        }
        self.send_outgoing(&mut out, now);
        self.impaired = out;
    }

    /// Offers one packet by itself; `false`: not now, and the port's next try is arranged.
    pub(super) fn offer_frame(&mut self, key: RunKey, port: usize, bytes: &[u8], now: Time) -> bool {
        let Via::Srv6(path) = &self.paths[usize::from(key.path)].via else { return true };
        if !path.resolved {
            self.causes.add(Cause::TxNoNeighbour, 1);
            return true;
        }
        let result = send_one(self.ports[port].rx.tx_fd(), &path.headers, key.class, bytes);
        match self.judge(result, now, false) {
            Some(Sent::Done) => {
                self.count_path(key.path, 1, bytes.len(), now);
                self.ports[port].stats.tx_calls += 1;
                true
            }
            Some(Sent::Later(_)) => {
                self.ports[port].retry_at = now + NOBUFS_PAUSE;
                false
            }
            Some(Sent::Lost(cause)) => {
                self.causes.add(cause, 1);
                true
            }
            None => true,
        }
    }

    /// Takes a batch of frames from a port; whether there were any.
    pub(super) fn receive_frames(&mut self, shared: &Shared, port: usize, frames: &mut FrameBuffer) -> bool {
        // An error other than "nothing there" (the interface is down, say) is reported once and means nothing here.
        let Ok(count @ 1..) = frames.receive(self.ports[port].rx.fd()) else {
            if self.watching {
                self.next_port.missed(port);
            }
            return false;
        };
        let now = sys::now();
        let dscp = self.config.dscp;
        let (mut arrived, mut data) = (0, 0);
        for index in 0..count {
            let Some((bytes, meta)) = frames.frame(index, |code| dscp.trimmed_reason(code).is_some()) else {
                self.causes.add(Cause::Unexpected, 1);
                continue;
            };
            arrived = meta.arrived_ns;
            data += usize::from(bytes.first().is_some_and(|&opcode| is_data(opcode)));
            self.datagram_in(shared, now, port, &meta, bytes);
        }
        if data > 0 {
            self.next_port.came(
                now,
                port,
                arrived,
                data,
                usize::from(self.config.ev_burst.min(LASTING_BURST)),
            );
        } else {
            self.next_port.came_beside(port, arrived);
        }
        if data > 1 {
            self.saw_bulk();
        }
        self.settle(shared, now);
        self.send_feedback(now);
        true
    }
}
