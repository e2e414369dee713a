//! Many messages in one system call (sendmmsg, recvmmsg).
//!
//! The calls go through `libc::syscall` for the same reason as in [`crate::message`].

use std::io;
use std::mem;
use std::os::fd::RawFd;

use crate::control::{Control, RECV_CONTROL, RecvMeta};
use crate::message::SEND_FLAGS;
use crate::{IoVec, count};

/// Messages without addresses that one call sends.
pub struct SendBatch {
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers in `messages` are used by `send` only, whose caller vouches for them.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// An empty batch with room for `capacity` messages.
    pub fn with_capacity(capacity: usize) -> Self {
        SendBatch { messages: Vec::with_capacity(capacity) }
    }

    /// Adds a message with the bytes of `iovecs`.
    #[inline]
    pub fn push(&mut self, iovecs: &[IoVec]) {
        // SAFETY: zeros are a valid, empty message header.
        let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
        message.msg_hdr.msg_iov = iovecs.as_ptr() as *mut _;
        message.msg_hdr.msg_iovlen = iovecs.len() as _;
        self.messages.push(message);
    }

    /// Removes every message.
    #[inline]
    pub fn clear(&mut self) {
        self.messages.clear();
    }

    /// Sends the messages in order; returns how many the kernel took, at least one.
    ///
    /// # Errors
    /// The kernel's, for the first message. None was sent then.
    ///
    /// # Safety
    /// The iovecs of every message are where they were when it was added, and name memory that is valid for reads.
    #[inline]
    pub unsafe fn send(&mut self, fd: RawFd) -> io::Result<usize> {
        let (messages, len) = (self.messages.as_mut_ptr(), self.messages.len());
        // SAFETY: the array has `len` messages, and the caller vouches for what they point to.
        count(unsafe { libc::syscall(libc::SYS_sendmmsg, fd, messages, len, SEND_FLAGS) })
    }
}

/// Messages that one call receives. Each goes into a buffer, or into a header buffer and then a body buffer.
pub struct RecvBatch {
    /// The messages point to these two, which never move.
    iovecs: Box<[[IoVec; 2]]>,
    controls: Box<[Control<RECV_CONTROL>]>,
    messages: Box<[libc::mmsghdr]>,
    received: usize,
}

// SAFETY: the pointers in `messages` point to the boxes beside them, which move with them; those in `iovecs` are used
// by `receive` only, whose caller vouches for them.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// Room for `capacity` messages, without buffers.
    pub fn new(capacity: usize) -> Self {
        let empty = IoVec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut iovecs = vec![[empty; 2]; capacity].into_boxed_slice();
        let mut controls = vec![Control::EMPTY; capacity].into_boxed_slice();
        let messages = iovecs.iter_mut().zip(&mut controls).map(|(iovecs, control)| {
            // SAFETY: zeros are a valid, empty message header.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = iovecs.as_mut_ptr();
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message
        });
        let messages = messages.collect();
        RecvBatch { iovecs, controls, messages, received: 0 }
    }

    /// Later calls put message `index` into `buffer`.
    #[inline]
    pub fn set_buffer(&mut self, index: usize, buffer: &mut [u8]) {
        self.iovecs[index][0] = iovec(buffer);
        self.messages[index].msg_hdr.msg_iovlen = 1;
    }

    /// Later calls put the beginning of message `index` into `header` and the rest into `body`.
    #[inline]
    pub fn set_buffers(&mut self, index: usize, header: &mut [u8], body: &mut [u8]) {
        self.iovecs[index] = [iovec(header), iovec(body)];
        self.messages[index].msg_hdr.msg_iovlen = 2;
    }

    /// Receives the messages queued on `fd`, at most `limit`; returns how many.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` if none is queued.
    ///
    /// # Safety
    /// The buffers of the first `limit` messages are valid for writes, and nothing refers to them during the call.
    #[inline]
    pub unsafe fn receive(&mut self, fd: RawFd, limit: usize) -> io::Result<usize> {
        debug_assert_eq!(self.iovecs.len(), self.controls.len());
        self.received = 0;
        let messages = &mut self.messages[..limit];
        for message in messages.iter_mut() {
            message.msg_hdr.msg_controllen = RECV_CONTROL as _;
        }
        let no_timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: each message points to buffers of the lengths it gives: ours, and those the caller vouches for.
        self.received = count(unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                fd,
                messages.as_mut_ptr(),
                messages.len(),
                libc::MSG_DONTWAIT,
                no_timeout,
            )
        })?;
        Ok(self.received)
    }

    /// Length of received message `index`, as far as it fitted its buffers.
    #[inline]
    pub fn len(&self, index: usize) -> usize {
        self.message(index).msg_len as usize
    }

    /// Whether the last call received nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.received == 0
    }

    /// Whether received message `index` was longer than its buffers.
    #[inline]
    pub fn is_truncated(&self, index: usize) -> bool {
        self.message(index).msg_hdr.msg_flags & libc::MSG_TRUNC != 0
    }

    /// Copies what the kernel reports about received message `index` into `meta`.
    #[inline]
    pub fn read_control(&self, index: usize, meta: &mut RecvMeta) {
        // SAFETY: the kernel has filled in this message, and its control buffer is one of ours.
        unsafe { meta.read_control(&self.message(index).msg_hdr) };
    }

    #[inline]
    fn message(&self, index: usize) -> &libc::mmsghdr {
        &self.messages[..self.received][index]
    }
}

#[inline]
fn iovec(buffer: &mut [u8]) -> IoVec {
    IoVec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_batch_arrives_in_order_in_its_buffers() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let texts: [&[u8]; 3] = [b"one", b"three", b"eleven"];
        let iovecs = texts.map(|t| [IoVec { iov_base: t.as_ptr() as *mut _, iov_len: t.len() }]);
        let mut out = SendBatch::with_capacity(3);
        iovecs.iter().for_each(|iovec| out.push(iovec));
        // SAFETY: the iovecs are alive and name static bytes.
        assert_eq!(unsafe { out.send(a.as_raw_fd()) }.unwrap(), 3);

        let mut heads = [[0u8; 2]; 4];
        let mut bodies = [[0u8; 3]; 4];
        let mut batch = RecvBatch::new(4);
        for (i, (head, body)) in heads.iter_mut().zip(&mut bodies).enumerate() {
            batch.set_buffers(i, head, body);
        }
        // SAFETY: the buffers are alive and not used during the call.
        assert_eq!(unsafe { batch.receive(b.as_raw_fd(), 4) }.unwrap(), 3);
        assert_eq!(
            [0, 1, 2].map(|i| (batch.len(i), batch.is_truncated(i))),
            [(3, false), (5, false), (5, true)]
        );
        assert_eq!((&heads[1], &bodies[1]), (b"th", b"ree"));
        // SAFETY: as above.
        let error = unsafe { batch.receive(b.as_raw_fd(), 4) }.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(batch.is_empty());
    }
}
