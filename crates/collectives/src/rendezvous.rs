//! Making a communicator: a rank makes a card for each peer, and connects when it has their cards.

use std::time::Duration;

use openmrc_nic::Context;
use openmrc_nic::attr::DEFAULT_PATH_MTU;
use openmrc_schedule::{Rank, Tuning};

use crate::abort::MAX_RANKS;
use crate::card::Card;
use crate::communicator::Communicator;
use crate::core::Core;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::link::{Link, Medium};
use crate::local::{Home, LocalLink};
use crate::network::Network;
use crate::remote::RemoteLink;

/// What a communicator is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Exchange messages with ranks of the same host through shared memory.
    pub shared_memory: bool,
    /// Largest path MTU.
    pub path_mtu: u16,
    /// A peer of another host that is silent for this time is probed, milliseconds.
    pub keepalive_ms: u32,
    /// How long a waiting thread looks for messages before it sleeps.
    pub spin: Duration,
    /// There are fewer processors than ranks of this host: a thread that looks for messages lets others run.
    pub crowded: bool,
    /// Which algorithm for which size.
    pub tuning: Tuning,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            shared_memory: true,
            path_mtu: DEFAULT_PATH_MTU,
            keepalive_ms: 1000,
            spin: Duration::from_micros(30),
            crowded: false,
            tuning: Tuning::default(),
        }
    }
}

/// The first half of a communicator: it has cards for its peers, and needs theirs.
pub struct Rendezvous {
    rank: Rank,
    ranks: usize,
    core: Core,
    options: Options,
    /// By rank; `None` for the own.
    remote: Vec<Option<RemoteLink>>,
    cards: Vec<Vec<u8>>,
}

impl Rendezvous {
    /// Prepares rank `rank` of `ranks` on an open device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank or number of ranks out of range; [`Error::Device`] if the device or the machine has
    /// no room.
    pub fn new(
        context: &Context,
        rank: Rank,
        ranks: usize,
        host_name: &str,
        options: Options,
    ) -> Result<Self> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(Error::invalid(format!("a communicator has 1 to {MAX_RANKS} ranks, not {ranks}")));
        }
        if rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} does not exist: there are 0 to {}", ranks - 1)));
        }
        let network = Network::open(context, ranks)?;
        let home = Home::new(ranks)?;
        let mut remote = Vec::with_capacity(ranks);
        let mut cards = Vec::with_capacity(ranks);
        for peer in 0..ranks {
            if peer == rank {
                remote.push(None);
                cards.push(Vec::new());
                continue;
            }
            let link = RemoteLink::new(&network.pd, &network.cq, &home, peer)?;
            let ring = |lane| home.base() as u64 + home.layout.ring(lane, peer) as u64;
            let card = Card {
                rank,
                ranks,
                host_name: host_name.into(),
                local: home.card(),
                qp_num: link.qp.qp_num(),
                psn: link.psn(),
                path_mtu: options.path_mtu,
                rkey: link.rkey(),
                rings: [ring(0), ring(1)],
                planes: context.addresses(),
            };
            cards.push(card.encode());
            remote.push(Some(link));
        }
        let core = Core::new(rank, ranks, home, network);
        Ok(Rendezvous { rank, ranks, core, options, remote, cards })
    }

    /// The card for a peer, which only it must get.
    pub fn card(&self, peer: Rank) -> &[u8] {
        &self.cards[peer]
    }

    /// Connects with all peers; `cards[r]` is what rank r made for this rank.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a card is missing, broken or of another communicator; [`Error::Device`].
    pub fn connect(mut self, cards: &[Vec<u8>]) -> Result<Communicator> {
        if cards.len() != self.ranks {
            return Err(Error::invalid(format!("{} cards for {} ranks", cards.len(), self.ranks)));
        }
        for (peer, bytes) in cards.iter().enumerate().filter(|(peer, _)| *peer != self.rank) {
            let card = Card::decode(bytes)?;
            if card.rank != peer || card.ranks != self.ranks {
                return Err(Error::invalid(format!(
                    "rank {peer} of {} gave a card of rank {} of {}",
                    self.ranks, card.rank, card.ranks
                )));
            }
            let shared = self.options.shared_memory;
            let local =
                shared.then(|| LocalLink::open(&card.local, &self.core.home, self.rank)).and_then(|l| l.ok());
            let medium = match (local, self.remote[peer].take()) {
                (Some(local), _) => Medium::Local(Box::new(local)),
                (None, Some(mut remote)) => {
                    remote.connect(&card, self.options.keepalive_ms, self.options.path_mtu)?;
                    Medium::Remote(Box::new(remote))
                }
                (None, None) => return Err(Error::invalid("two cards of one rank")),
            };
            self.core.add_link(Link::new(&card, medium));
        }
        let Options { spin, crowded, tuning, .. } = self.options;
        let driver = Driver::new(self.core, spin, crowded);
        Communicator::start(self.rank, self.ranks, driver, tuning)
    }
}
