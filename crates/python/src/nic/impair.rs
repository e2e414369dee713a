//! Rules of the impairer, from `openmrc.testing.Impairment`.

use std::time::Duration;

use openmrc_nic::{EvSelection, ImpairRule, Impairment, PacketClass};
use openmrc_transport::PortSet;
use openmrc_wire::Ev;
use pyo3::prelude::*;

use super::context::Context;
use super::convert::{duration, field, number, optional, out_of_range};
use super::error::{OrRaise, refused};

/// Replaces the rules of a device.
#[pyfunction]
fn set_impairments(
    py: Python<'_>,
    context: &Context,
    rules: Vec<Bound<'_, PyAny>>,
    seed: u64,
) -> PyResult<()> {
    let rules = rules.iter().map(rule).collect::<PyResult<Vec<_>>>()?;
    py.detach(|| context.context.set_impairments(rules, seed)).or_raise()
}

/// How often each rule has acted.
#[pyfunction]
fn impairment_hits(py: Python<'_>, context: &Context) -> PyResult<Vec<u64>> {
    py.detach(|| context.context.impairment_hits()).or_raise()
}

/// Time at which each rule acted last, nanoseconds of the monotonic clock; `None` if it never did.
#[pyfunction]
fn impairment_last_hits(py: Python<'_>, context: &Context) -> PyResult<Vec<Option<u64>>> {
    py.detach(|| context.context.impairment_last_hits()).or_raise()
}

fn rule(from: &Bound<'_, PyAny>) -> PyResult<ImpairRule> {
    let seconds = |name: &str, value: f64| duration(value, 1.0, name);
    let micros = |name: &str, value: f64| duration(value, 1e-6, name);
    let kind: String = from.getattr("kind")?.extract()?;
    let kind = match kind.as_str() {
        "drop" => Impairment::Drop,
        "duplicate" => Impairment::Duplicate,
        "reorder" => Impairment::Reorder {
            packets: field!(from, "packets", "1 to 2^32 - 1")?,
            at_most: micros("at_most_us", field!(from, "at_most_us", "a number of microseconds")?)?,
        },
        "corrupt" => Impairment::Corrupt { bits: field!(from, "bits", "1 to 2^32 - 1")? },
        "delay" => Impairment::Delay {
            delay: micros("delay_us", field!(from, "delay_us", "a number of microseconds")?)?,
            jitter: micros("jitter_us", field!(from, "jitter_us", "a number of microseconds")?)?,
        },
        "ecn_mark" => Impairment::EcnMark,
        "trim" => Impairment::Trim { last_hop: field!(from, "last_hop", "True or False")? },
        other => return Err(refused(format!("{other:?} is no kind of impairment"))),
    };
    let class: String = from.getattr("packet_class")?.extract()?;
    let class = match class.as_str() {
        "any" => PacketClass::Any,
        "data" => PacketClass::Data,
        "control" => PacketClass::Control,
        other => return Err(refused(format!("packet_class is {other:?}: any, data or control is allowed"))),
    };
    let evs: Option<Vec<u32>> = collection(from, "evs", "a collection of entropy values")?;
    let fraction: Option<f64> = optional!(from, "ev_fraction", "0 to 1")?;
    let evs = match (evs, fraction) {
        (Some(_), Some(_)) => return Err(refused("a rule takes evs or ev_fraction, not both")),
        (Some(evs), None) => EvSelection::Set(evs.into_iter().map(Ev).collect()),
        (None, Some(fraction)) => EvSelection::Fraction(fraction),
        (None, None) => EvSelection::All,
    };
    let ports: Option<Vec<usize>> = collection(from, "ports", "a collection of port numbers")?;
    let ports = match ports {
        None => u16::MAX,
        Some(list) => list.into_iter().try_fold(0, |set, port| match port < PortSet::MAX_PORTS {
            true => Ok(set | 1 << port),
            false => Err(refused(format!("port {port}: a device has at most {}", PortSet::MAX_PORTS))),
        })?,
    };
    let end: Option<f64> = optional!(from, "end", "a number of seconds")?;
    Ok(ImpairRule {
        ports,
        evs,
        class,
        kind,
        probability: field!(from, "probability", "0 to 1")?,
        start: seconds("start", field!(from, "start", "a number of seconds")?)?,
        end: end.map(|end| seconds("end", end)).transpose()?.filter(|&end| end < Duration::MAX),
    })
}

/// The members of an attribute that is None or an iterable, such as a set.
fn collection<'py, T>(from: &Bound<'py, PyAny>, name: &str, allowed: &str) -> PyResult<Option<Vec<T>>>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    let value = from.getattr(name)?;
    if value.is_none() {
        return Ok(None);
    }
    let members = value.try_iter().map_err(|_| out_of_range(&value, name, allowed))?;
    members.map(|member| number(&member?, name, allowed)).collect::<PyResult<_>>().map(Some)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_impairments, module)?)?;
    module.add_function(wrap_pyfunction!(impairment_hits, module)?)?;
    module.add_function(wrap_pyfunction!(impairment_last_hits, module)?)
}
