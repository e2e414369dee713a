//! The two ways in which packets leave this host and come in: UDP sockets, and SRv6 frames on packet sockets.
//! Everything that depends on which of them a device uses is behind [`Datapath`] and [`Inbox`].

mod offer;
mod srv6;
mod udp;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use openmrc_sockets::{Epoll, InterfaceAddr, LinkWatch, RecvBuffer, RecvMeta, thread};
use openmrc_transport::{PathEntry, Time};
use openmrc_wire::{DscpMap, Packet};

use crate::config::{DeviceConfig, PortConfig};
use crate::error::Result;
use crate::frames::FrameBuffer;
use crate::network::Network;
use crate::path::SegmentRoute;
use crate::piece::Piece;
use crate::port::Port;
use crate::profiles::engine::Paths;
use crate::socket::LONGEST_DATAGRAM;
use crate::stats::Cause;
use crate::tx::RunKey;
use offer::Offer;
use srv6::Srv6;
use udp::Udp;

/// How packets leave.
pub(crate) enum Datapath {
    /// By UDP sockets, one for each source port, with descriptors or in a ring.
    Udp(Box<Udp>),
    /// As SRv6 frames, by one packet socket for each port.
    Srv6(Box<Srv6>),
}

impl Datapath {
    /// The datapath of a device.
    ///
    /// # Errors
    /// The system's.
    pub fn open(config: &Arc<DeviceConfig>) -> Result<Self> {
        Ok(match config.entropy.is_srv6() {
            false => Datapath::Udp(Box::new(Udp::new(Arc::clone(config)))),
            true => {
                if config.sockets.raise_descriptor_limit {
                    thread::raise_descriptor_limit();
                }
                Datapath::Srv6(Box::new(Srv6::open(config)?))
            }
        })
    }

    /// A port, its sockets open, and the paths that the device has by it from the start, added to `net`.
    ///
    /// # Errors
    /// The system's.
    pub fn open_port(
        &mut self,
        net: &mut Network,
        port: &PortConfig,
        interfaces: &[InterfaceAddr],
    ) -> Result<Port> {
        match self {
            Datapath::Udp(udp) => udp.open_port(net, port),
            Datapath::Srv6(srv6) => srv6.open_port(port, interfaces),
        }
    }

    /// Closes what sends. What the ports have is theirs.
    pub fn close(&mut self) {
        if let Datapath::Udp(udp) = self {
            udp.close();
        }
    }

    /// Descriptors of what sends.
    pub fn send_descriptors(&self, net: &Network) -> usize {
        match self {
            Datapath::Udp(udp) => udp.send_descriptors(net),
            Datapath::Srv6(_) => net.ports.len(),
        }
    }

    /// A watch on the interfaces, if the system allows one.
    pub fn watch_links(&self) -> Option<LinkWatch> {
        let neighbours = matches!(self, Datapath::Srv6(_));
        LinkWatch::open(neighbours).ok()
    }

    /// Receive buffers of one port.
    pub fn inbox(&self, dscp: DscpMap) -> Inbox {
        match self {
            Datapath::Udp(_) => {
                Inbox::Datagram { room: RecvBuffer::new(LONGEST_DATAGRAM), meta: RecvMeta::new(0) }
            }
            Datapath::Srv6(_) => Inbox::Frames { room: Box::new(FrameBuffer::new()), count: 0, dscp },
        }
    }

    // --- paths ---------------------------------------------------------------------------------------------------

    /// The number of a path to `peer` (any node, if it is empty). Opens it if it is not open.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if there can be no such path, or the system's.
    pub fn open_path(
        &mut self,
        net: &mut Network,
        entry: PathEntry,
        route: Option<SegmentRoute>,
        peer: &[SocketAddr],
    ) -> Result<u16> {
        net.check_port(entry.port.into())?;
        match self {
            Datapath::Udp(udp) => udp.open_path(net, entry, route),
            Datapath::Srv6(srv6) => srv6.open_path(net, entry, route, peer),
        }
    }

    /// Takes over the kernel's routes and neighbours as they are now.
    pub fn refresh_next_hops(&mut self, net: &mut Network, now: Time) {
        if let Datapath::Srv6(srv6) = self {
            srv6.refresh_next_hops(net, now);
        }
    }

    /// When that is due even if nothing has changed.
    pub fn next_refresh(&self) -> Time {
        match self {
            Datapath::Udp(_) => Time::NEVER,
            Datapath::Srv6(srv6) => srv6.next_refresh(),
        }
    }

    /// Of these paths, on ports that are up: how many have a next hop that has answered, and one that has not.
    pub fn next_hops_of(&self, net: &Network, paths: &Paths) -> (usize, Option<String>) {
        match self {
            Datapath::Udp(_) => (0, None),
            Datapath::Srv6(srv6) => srv6.next_hops_of(net, paths),
        }
    }

    // --- sending -------------------------------------------------------------------------------------------------

    /// Adds a packet to the next run or batch. Its payload is in `pieces`, which must stay valid until
    /// [`Datapath::flush`].
    /// Sends a packet without payload on a path to a node that is not a peer.
    pub fn answer(
        &mut self,
        net: &mut Network,
        path: u16,
        dest: SocketAddr,
        packet: &Packet,
        class: u8,
        now: Time,
    ) {
        if let Datapath::Udp(udp) = self {
            udp.answer(net, path, dest, packet, class, now);
        }
    }

    #[inline]
    pub fn push(&mut self, net: &mut Network, key: RunKey, packet: &Packet, pieces: &[Piece], now: Time) {
        match self {
            Datapath::Udp(udp) => udp.push(net, key, packet, pieces, now),
            Datapath::Srv6(srv6) => srv6.push(net, key, packet, pieces, now),
        }
    }

    /// Sends everything that was added.
    #[inline]
    pub fn flush(&mut self, net: &mut Network, now: Time) {
        match self {
            Datapath::Udp(udp) => udp.flush(net, now),
            Datapath::Srv6(srv6) => srv6.flush(net, now),
        }
    }

    /// For what does not leave by the fast path.
    fn offering(&mut self) -> &mut dyn Offer {
        match self {
            Datapath::Udp(udp) => &mut **udp,
            Datapath::Srv6(srv6) => &mut **srv6,
        }
    }

    /// Sends what the impairer has held back until now.
    pub fn send_impaired_due(&mut self, net: &mut Network, now: Time) {
        let mut due = Vec::new();
        net.impairer.take_due(now, &mut due);
        self.offering().send_outgoing(net, &mut due, now);
    }

    /// Offers what a port holds again, in order.
    pub fn retry_held(&mut self, net: &mut Network, port: usize, now: Time) {
        self.offering().retry_held(net, port, now);
    }

    /// Lets epoll report when the sockets that held runs wait for can be written again; token `first_token + path`.
    pub fn watch_held(&mut self, net: &mut Network, epoll: &Epoll, first_token: u64) {
        if let Datapath::Udp(_) = self {
            udp::watch_held(net, epoll, first_token);
        }
    }

    /// The socket of a path can be written again.
    pub fn writable(&mut self, net: &mut Network, epoll: &Epoll, path: usize, now: Time) {
        if let Some(port) = udp::unwatch(net, epoll, path) {
            self.retry_held(net, port, now);
        }
    }
}

/// What was read from a port in one go.
pub(crate) enum Inbox {
    /// One datagram, of one or several packets.
    Datagram { room: RecvBuffer, meta: RecvMeta },
    /// Several frames.
    Frames { room: Box<FrameBuffer>, count: usize, dscp: DscpMap },
}

impl Inbox {
    /// Reads from a port's socket; returns when the first of what came arrived, nanoseconds by the system's clock.
    /// Errors (nothing to read, of a route, of the interface) are ignored.
    #[inline]
    pub fn read(&mut self, fd: RawFd) -> Option<u64> {
        match self {
            Inbox::Datagram { room, meta } => {
                *meta = room.receive(fd).ok()?;
                Some(meta.arrived_ns)
            }
            Inbox::Frames { room, count, .. } => {
                *count = room.receive(fd).ok().filter(|&count| count > 0)?;
                Some(room.arrived_ns())
            }
        }
    }

    /// Gives `each` the datagrams that were read, or the cause why a frame has none for this device.
    #[inline]
    pub fn handle(&self, mut each: impl FnMut(Result<(&[u8], RecvMeta), Cause>)) {
        match self {
            Inbox::Datagram { room, meta } => each(Ok((room.bytes(), *meta))),
            Inbox::Frames { room, count, dscp } => {
                let trimmed = |code| dscp.trimmed_reason(code).is_some();
                (0..*count).for_each(|index| {
                    each(match room.frame(index, trimmed) {
                        Ok(datagram) => datagram.ok_or(Cause::Unexpected),
                        Err(error) => Err(Cause::from(&error)),
                    });
                });
            }
        }
    }
}
