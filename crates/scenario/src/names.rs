//! Links, ports and switches by the names that a scenario gives them (docs/spec/fabric.md, "Names").

use openmrc_fabric::{End, Fabric, Link, Node};

use crate::error::ScenarioError;
use crate::run::Target;

/// The number of a link, by its own name or by that of the host's port that it leads to.
///
/// # Errors
/// If there is no such link.
pub fn link_number(fabric: &Fabric, name: &str) -> Result<u32, ScenarioError> {
    let switch = || ScenarioError::new(format!("{name} is a switch; name a link"));
    target(fabric, name)?.link().ok_or_else(switch)
}

/// The numbers of links, each named once.
pub(crate) fn link_numbers(fabric: &Fabric, names: &[String]) -> Result<Vec<u32>, ScenarioError> {
    let mut seen = std::collections::HashSet::new();
    let mut numbers = Vec::with_capacity(names.len());
    for name in names {
        let number = link_number(fabric, name)?;
        if !seen.insert(number) {
            return Err(ScenarioError::new(format!("{name} is named twice")));
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// What a name of a fault's target means: one link or switch, or all of a kind.
#[derive(Clone, Copy)]
pub(crate) enum Named {
    One(Target),
    /// Links of layers from here to there.
    Links(u8, u8),
    Switches,
}

/// What a name means.
pub(crate) fn named(fabric: &Fabric, name: &str) -> Result<Named, ScenarioError> {
    Ok(match name {
        "links" => Named::Links(0, fabric.tiers()),
        "host-links" => Named::Links(0, 1),
        "fabric-links" => Named::Links(1, fabric.tiers()),
        "switches" => Named::Switches,
        _ => Named::One(target(fabric, name)?),
    })
}

impl Named {
    /// The links and switches, in the order of their numbers.
    pub(crate) fn targets(self, fabric: &Fabric) -> Vec<Target> {
        match self {
            Named::One(target) => vec![target],
            Named::Links(from, to) => (0..fabric.links())
                .filter(|&number| fabric.link(number).is_some_and(|link| (from..to).contains(&link.layer)))
                .map(Target::Link)
                .collect(),
            Named::Switches => (0..fabric.switches()).map(Target::Switch).collect(),
        }
    }

    /// How many they are.
    pub(crate) fn count(self, fabric: &Fabric) -> u64 {
        match self {
            Named::One(_) => 1,
            Named::Links(from, to) => {
                let of_plane = &fabric.counts().links[usize::from(from)..usize::from(to)];
                of_plane.iter().map(|&links| u64::from(links) * u64::from(fabric.shape().planes)).sum()
            }
            Named::Switches => fabric.switches().into(),
        }
    }

    /// Whether they are switches.
    pub(crate) fn are_switches(self) -> bool {
        matches!(self, Named::Switches | Named::One(Target::Switch(_)))
    }

    /// Whether they are cables of hosts.
    pub(crate) fn are_host_links(self, fabric: &Fabric) -> bool {
        match self {
            Named::One(target) => {
                target.link().and_then(|number| fabric.link(number)).is_some_and(|link| link.layer == 0)
            }
            Named::Links(_, to) => to == 1,
            Named::Switches => false,
        }
    }
}

/// A link, a host's port or a switch by its name.
fn target(fabric: &Fabric, name: &str) -> Result<Target, ScenarioError> {
    let unknown = |error: openmrc_fabric::NameError| ScenarioError::new(error.to_string());
    if let Some((host, plane)) = name.strip_prefix('h').and_then(|rest| rest.split_once(":p"))
        && let (Ok(lower), Ok(plane)) = (host.parse::<u32>(), plane.parse::<u32>())
    {
        let shape = fabric.shape();
        if lower >= shape.hosts || plane >= shape.planes {
            let (hosts, planes) = (shape.hosts - 1, shape.planes - 1);
            let message =
                format!("there is no port {name}: hosts are h0 to h{hosts}, planes p0 to p{planes}");
            return Err(ScenarioError::new(message));
        }
        return Ok(Target::Link(fabric.link_number(Link { plane, layer: 0, lower, uplink: 0 })));
    }
    if name.contains("--") {
        let link = fabric.link_named(name).map_err(unknown)?;
        return Ok(Target::Link(fabric.link_number(link)));
    }
    match fabric.node_named(name).map_err(unknown)? {
        Node::Switch(switch) => Ok(Target::Switch(fabric.switch_number(switch))),
        Node::Host(_) => Err(ScenarioError::new(format!("{name} is a host; name its cable, or a switch"))),
    }
}

/// The name of a link or a switch; of one direction of a link, that of the link and the direction.
pub fn target_name(fabric: &Fabric, target: Target) -> String {
    let of_link = |link| fabric.link(link).map(|link| fabric.link_name(link));
    let name = match target {
        Target::Link(link) => of_link(link),
        Target::Upward(link) => of_link(link).map(|name| name + " upward"),
        Target::Downward(link) => of_link(link).map(|name| name + " downward"),
        Target::Switch(switch) => fabric.switch_at(switch).map(|switch| switch.to_string()),
    };
    name.unwrap_or_default()
}

/// The name of a port: `h12:p3`, `p3/t0-17:up5`.
pub fn port_name(fabric: &Fabric, end: End) -> String {
    match end.node {
        Node::Host(host) => format!("h{host}:p{}", end.port),
        Node::Switch(switch) => format!("{switch}:{}", fabric.port_name(switch, end.port)),
    }
}
