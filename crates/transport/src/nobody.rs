//! For unit tests: a host that takes everything and keeps nothing.

use crate::api::{AccessError, Fatal, Host, NoReceive, RecvDone, SendDone, Transmit};
use crate::time::Time;

pub(crate) struct Nobody;

impl Host for Nobody {
    fn write(&mut self, _: u32, _: u64, _: u32) -> Result<(), AccessError> {
        Ok(())
    }
    fn transmit(&mut self, _: Transmit) {}
    fn send_done(&mut self, _: SendDone) {}
    fn recv_done(&mut self, _: RecvDone) -> Result<(), NoReceive> {
        Ok(())
    }
    fn may_probe_path(&mut self, _: Time) -> bool {
        true
    }
    fn fatal(&mut self, _: Fatal) {}
}
