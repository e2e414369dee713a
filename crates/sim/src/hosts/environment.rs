//! What a queue pair sees of the simulation while it handles a packet or a timeout.

use openmrc_transport::{
    AccessError, EvEvent, Fatal, Host, NoReceive, PathId, RecvDone, SendDone, Time, Transmit,
};

use super::posts::MessageState;
use crate::memory::message_at;
use crate::record::{LogEvent, Recorder};

/// What queue pairs have asked for. It is emptied after each, and kept for its memory.
#[derive(Default)]
pub(super) struct Outbox {
    pub transmits: Vec<Transmit>,
    pub done: Vec<SendDone>,
    /// Messages that have arrived whole.
    pub delivered: Vec<u32>,
    pub failed: bool,
    /// Packets taken for lost.
    pub losses: u64,
}

/// The queue pair that is being served, for the record.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    pub connection: u32,
    pub host: u32,
    pub peer_host: u32,
}

/// The environment of a queue pair.
pub(super) struct Environment<'a> {
    pub now: Time,
    pub messages: &'a mut [MessageState],
    pub outbox: &'a mut Outbox,
    pub recorder: Option<&'a mut Recorder>,
    pub owner: Owner,
    /// Plane by which the packet came.
    pub plane: u8,
}

impl Host for Environment<'_> {
    fn place(&mut self, _rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        let index = message_at(va);
        let message = self.messages.get_mut(index as usize).ok_or(AccessError)?;
        message.placed += len;
        if let Some(recorder) = &mut self.recorder {
            recorder.placed(index, self.plane, len);
        }
        if message.placed == message.bytes {
            message.delivered = self.now.0;
            self.outbox.delivered.push(index);
        }
        Ok(())
    }

    fn transmit(&mut self, transmit: Transmit) {
        self.outbox.transmits.push(transmit);
    }

    fn send_done(&mut self, done: SendDone) {
        self.outbox.done.push(done);
    }

    fn recv_done(&mut self, _done: RecvDone) -> Result<(), NoReceive> {
        Ok(())
    }

    fn path_loss(&mut self, _path: PathId, _port: u8) {
        self.outbox.losses += 1;
    }

    fn ev_event(&mut self, event: EvEvent) {
        if let Some(recorder) = &mut self.recorder {
            let Owner { connection, host, peer_host } = self.owner;
            recorder.path_event(self.now, connection, (host, peer_host), event);
        }
    }

    fn fatal(&mut self, _why: Fatal) {
        self.outbox.failed = true;
        if let Some(recorder) = &mut self.recorder {
            let Owner { host, peer_host, .. } = self.owner;
            recorder.log(self.now, LogEvent::Failed { host, peer: peer_host });
        }
    }
}
