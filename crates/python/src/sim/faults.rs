//! Links and switches by the names that a scenario gives them, and its faults as a schedule.

use openmrc_fabric::{Fabric, Link, NameError, Node};
use openmrc_sim::{Change, Fault, Target, schedule};
use openmrc_transport::{Span, Time};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{item, micros, nanos, refused};

/// Links by their names; the fabric's numbers of them.
pub(super) fn link_numbers(fabric: &Fabric, names: &[String]) -> PyResult<Vec<u32>> {
    let mut numbers = Vec::with_capacity(names.len());
    for name in names {
        let number = link_number(fabric, name)?;
        if numbers.contains(&number) {
            return Err(refused(format!("{name} is named twice")));
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// The fabric's number of a link, which a host's port names too.
pub(super) fn link_number(fabric: &Fabric, name: &str) -> PyResult<u32> {
    match target(fabric, name)? {
        Target::Link(link) => Ok(link),
        Target::Switch(_) => Err(refused(format!("{name} is a switch; name a link"))),
    }
}

/// Links and switches by their names, or all of a kind.
fn targets(fabric: &Fabric, name: &str) -> PyResult<Vec<Target>> {
    let links = |wanted: fn(u8) -> bool| {
        let of_layer = |&n: &u32| fabric.link(n).is_some_and(|link| wanted(link.layer));
        (0..fabric.links()).filter(of_layer).map(Target::Link).collect()
    };
    Ok(match name {
        "links" => links(|_| true),
        "host-links" => links(|layer| layer == 0),
        "fabric-links" => links(|layer| layer > 0),
        "switches" => (0..fabric.switches()).map(Target::Switch).collect(),
        _ => vec![target(fabric, name)?],
    })
}

/// A link, a host's port or a switch by its name.
fn target(fabric: &Fabric, name: &str) -> PyResult<Target> {
    let unknown = |error: NameError| refused(format!("{error}"));
    if let Some((host, plane)) = name.strip_prefix('h').and_then(|rest| rest.split_once(":p"))
        && let (Ok(lower), Ok(plane)) = (host.parse::<u32>(), plane.parse::<u32>())
    {
        let shape = fabric.shape();
        if lower >= shape.hosts || plane >= shape.planes {
            let (hosts, planes) = (shape.hosts - 1, shape.planes - 1);
            return Err(refused(format!(
                "there is no port {name}: hosts are h0 to h{hosts}, planes p0 to p{planes}"
            )));
        }
        return Ok(Target::Link(fabric.link_number(Link { plane, layer: 0, lower, uplink: 0 })));
    }
    if name.contains("--") {
        let link = fabric.link_named(name).map_err(unknown)?;
        return Ok(Target::Link(fabric.link_number(link)));
    }
    match fabric.node_named(name).map_err(unknown)? {
        Node::Switch(switch) => Ok(Target::Switch(fabric.switch_number(switch))),
        Node::Host(_) => Err(refused(format!("{name} is a host; name its cable, or a switch"))),
    }
}

pub(super) fn fault_schedule(spec: &Bound<'_, PyDict>, fabric: &Fabric, limit: Time) -> PyResult<Vec<Fault>> {
    let names: Vec<String> = item(spec, "targets")?;
    let targets = names.iter().map(|name| targets(fabric, name)).collect::<PyResult<Vec<_>>>()?.concat();
    let kind: String = item(spec, "kind")?;
    let at = micros(item(spec, "at_us")?);
    let until = item::<Option<f64>>(spec, "until_us")?.map(micros);
    let value: f64 = item(spec, "value")?;
    let effect = match kind.as_str() {
        "random" => item::<String>(spec, "effect")?,
        _ => kind.clone(),
    };
    let change = match effect.as_str() {
        "loss" => Change::Loss(value),
        "bit-errors" => Change::BitErrors(value),
        "slow" => Change::Slow(value),
        _ => Change::Down,
    };
    match kind.as_str() {
        "down" | "loss" | "bit-errors" | "slow" => {}
        "nic-port" => {
            let of_host = |target: &Target| match *target {
                Target::Link(number) => fabric.link(number).is_some_and(|link| link.layer == 0),
                Target::Switch(_) => false,
            };
            if !targets.iter().all(of_host) {
                return Err(refused(format!("{} are not all ports of hosts, as h12:p3", names.join(", "))));
            }
        }
        "broken" => return Ok(schedule::broken(&targets, value, at, item(spec, "seed")?)),
        "reboot" => {
            let down = nanos(item::<f64>(spec, "down_us")? * 1e3);
            if targets.iter().any(|target| !matches!(target, Target::Switch(_))) {
                return Err(refused(format!(
                    "{} are not all switches, which a reboot is of",
                    names.join(", ")
                )));
            }
            return Ok(targets.iter().flat_map(|&t| schedule::flap(t, at, down, Span::ZERO, 1)).collect());
        }
        "transceiver" => return transceiver(spec, fabric, &names[0], at),
        "flap" => {
            let (down, up) = (item::<f64>(spec, "down_us")?, item::<f64>(spec, "up_us")?);
            let times = item(spec, "times")?;
            let flap = |&target| schedule::flap(target, at, nanos(down * 1e3), nanos(up * 1e3), times);
            return Ok(targets.iter().flat_map(flap).collect());
        }
        "random" => {
            let (mtbf, mttr) = (item::<f64>(spec, "mtbf_us")?, item::<f64>(spec, "mttr_us")?);
            let end = until.unwrap_or(limit);
            return Ok(schedule::random(
                &targets,
                change,
                nanos(mtbf * 1e3),
                nanos(mttr * 1e3),
                end,
                item(spec, "seed")?,
            ));
        }
        other => return Err(refused(format!("kind: {other} is not a fault"))),
    }
    let both = |&target| {
        let end = until.map(|at| Fault { at, target, change: Change::Up });
        [Some(Fault { at, target, change }), end]
    };
    Ok(targets.iter().flat_map(both).flatten().collect())
}

/// Ports of a switch that share a transceiver: they go down and up together.
fn transceiver(spec: &Bound<'_, PyDict>, fabric: &Fabric, name: &str, at: Time) -> PyResult<Vec<Fault>> {
    let Node::Switch(switch) = fabric.node_named(name).map_err(|e| refused(format!("{e}")))? else {
        return Err(refused(format!("{name} is not a switch")));
    };
    let (down, up) = (item::<f64>(spec, "down_us")?, item::<f64>(spec, "up_us")?);
    let times = item(spec, "times")?;
    let mut schedule = Vec::new();
    for port in item::<Vec<u32>>(spec, "ports")? {
        let link = fabric
            .link_at(switch, port)
            .ok_or_else(|| refused(format!("{name} has no cable on port {port}")))?;
        let target = Target::Link(fabric.link_number(link));
        schedule.extend(schedule::flap(target, at, nanos(down * 1e3), nanos(up * 1e3), times));
    }
    Ok(schedule)
}
