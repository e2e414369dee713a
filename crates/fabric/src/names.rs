//! Names of nodes and links: `h12`, `p3/t0-17`, `p3/t0-17:up5--p3/t1-5`, `h12:p3--p3/t0-0:down12` (docs/spec/fabric.md,
//! "Names").

use core::fmt;
use core::str::FromStr;

use crate::fabric::{Fabric, Link, Node, Switch};

/// Why a text is not a name in this fabric.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// The text does not have the form of a name.
    #[error(
        "{0:?} is not a name: a host is h12, a switch p3/t0-17, a link p3/t0-17:up5--p3/t1-5 or h12:p3--p3/t0-0:down12"
    )]
    Form(String),
    /// The name has the right form, but the fabric has no such node or link.
    #[error("{0} does not exist in this fabric")]
    Unknown(String),
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}/t{}-{}", self.plane, self.tier, self.index)
    }
}

impl FromStr for Switch {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parse = || {
            let (plane, rest) = text.strip_prefix('p')?.split_once("/t")?;
            let (tier, index) = rest.split_once('-')?;
            Some(Switch {
                plane: number(plane)?,
                tier: number(tier)?.try_into().ok()?,
                index: number(index)?,
            })
        };
        parse().ok_or_else(|| NameError::Form(text.into()))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Host(host) => write!(f, "h{host}"),
            Node::Switch(switch) => switch.fmt(f),
        }
    }
}

impl FromStr for Node {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.strip_prefix('h').and_then(number) {
            Some(host) => Ok(Node::Host(host)),
            None => text.parse().map(Node::Switch),
        }
    }
}

/// A number in a name: digits only and no leading zeros, so that everything has exactly one name.
fn number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

impl Fabric {
    /// The name of a switch's port: `down12` or `up5`.
    pub fn port_name(&self, switch: Switch, port: u32) -> String {
        match port.checked_sub(self.downlinks(switch.tier)) {
            None => format!("down{port}"),
            Some(uplink) => format!("up{uplink}"),
        }
    }

    /// The name of a link.
    pub fn link_name(&self, link: Link) -> String {
        let (lower, upper) = (self.lower_end(link).node, self.upper_end(link));
        match lower {
            Node::Host(_) => format!("{lower}:p{}--{}:down{}", link.plane, upper.node, upper.port),
            Node::Switch(_) => format!("{lower}:up{}--{}", link.uplink, upper.node),
        }
    }

    /// The link with this name.
    ///
    /// # Errors
    /// [`NameError`] if it is not the name of a link, or the link does not exist.
    pub fn link_named(&self, text: &str) -> Result<Link, NameError> {
        let form = || NameError::Form(text.into());
        let (lower, _) = text.split_once("--").ok_or_else(form)?;
        let (node, port) = lower.split_once(':').ok_or_else(form)?;
        let link = match node.parse()? {
            Node::Host(host) => {
                let plane = port.strip_prefix('p').and_then(number).ok_or_else(form)?;
                Link { plane, layer: 0, lower: host, uplink: 0 }
            }
            Node::Switch(Switch { plane, tier, index }) => {
                let uplink = port.strip_prefix("up").and_then(number).ok_or_else(form)?;
                Link { plane, layer: tier.saturating_add(1), lower: index, uplink }
            }
        };
        if !self.has_link(link) || self.link_name(link) != text {
            return Err(NameError::Unknown(text.into()));
        }
        Ok(link)
    }

    /// The host or switch with this name.
    ///
    /// # Errors
    /// [`NameError`] if it is not the name of a node, or the node does not exist.
    pub fn node_named(&self, text: &str) -> Result<Node, NameError> {
        let node = text.parse()?;
        let exists = match node {
            Node::Host(host) => host < self.shape().hosts,
            Node::Switch(switch) => self.has_switch(switch),
        };
        if exists { Ok(node) } else { Err(NameError::Unknown(text.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::tests::any_fabric;
    use crate::shape::Sizing;
    use proptest::prelude::*;

    #[test]
    fn names_read_as_the_specification_writes_them() {
        let fabric = Fabric::new(Sizing::new(131_072, 8, 2, 512).smallest().unwrap()).unwrap();
        let name = |n: Link| fabric.link_name(n);
        assert_eq!(name(Link { plane: 3, layer: 1, lower: 17, uplink: 5 }), "p3/t0-17:up5--p3/t1-5");
        assert_eq!(name(Link { plane: 3, layer: 0, lower: 12, uplink: 0 }), "h12:p3--p3/t0-0:down12");
    }

    #[test]
    fn other_texts_are_refused() {
        let fabric = Fabric::new(Sizing::new(16, 2, 2, 8).smallest().unwrap()).unwrap();
        for text in ["", "h", "h+1", "h01", "x0", "p0/t0", "p0/t0-", "p0-t0/1", "p0/t300-0", "h4294967296"] {
            assert!(matches!(fabric.node_named(text), Err(NameError::Form(_))), "{text}");
        }
        for text in ["h16", "p2/t0-0", "p0/t2-0", "p0/t0-4"] {
            assert!(matches!(fabric.node_named(text), Err(NameError::Unknown(_))), "{text}");
        }
        for text in ["h0:p0--p0/t0-0:down1", "p0/t0-0:up0--p0/t1-1", "p0/t1-0:up0--p0/t2-0"] {
            assert!(matches!(fabric.link_named(text), Err(NameError::Unknown(_))), "{text}");
        }
    }

    proptest! {
        #[test]
        fn names_go_both_ways(fabric in any_fabric()) {
            for host in 0..fabric.shape().hosts {
                prop_assert_eq!(fabric.node_named(&format!("h{host}")), Ok(Node::Host(host)));
            }
            for switch in fabric.all_switches() {
                prop_assert_eq!(fabric.node_named(&switch.to_string()), Ok(Node::Switch(switch)));
                for port in 0..fabric.downlinks(switch.tier) + fabric.uplinks(switch.tier) {
                    let name = fabric.port_name(switch, port);
                    let (base, digits) = match name.strip_prefix("down") {
                        Some(digits) => (0, digits),
                        None => (fabric.downlinks(switch.tier), &name["up".len()..]),
                    };
                    prop_assert_eq!(number(digits).map(|n| base + n), Some(port));
                }
            }
            for number in 0..fabric.links() {
                let link = fabric.link(number).unwrap();
                prop_assert_eq!(fabric.link_named(&fabric.link_name(link)), Ok(link));
            }
        }

        #[test]
        fn any_text_is_a_name_or_an_error(text in "[hp0-9/t:up-]{0,24}") {
            let fabric = Fabric::new(Sizing::new(16, 2, 2, 8).smallest().unwrap()).unwrap();
            if let Ok(node) = fabric.node_named(&text) {
                prop_assert_eq!(node.to_string(), text.clone());
            }
            if let Ok(link) = fabric.link_named(&text) {
                prop_assert_eq!(fabric.link_name(link), text);
            }
        }
    }
}
