//! Impairments. Rules come as JSON, a list of the fields of `openmrc.testing.Impairment`; the NIC's own type reads them.

use openmrc_nic::{ImpairDescription, ImpairRule};
use pyo3::prelude::*;

use super::context::Context;
use super::error::{OrRaise, refused};

/// The rules of a list, for a device with this number of ports.
fn rules(json: &str, ports: usize) -> PyResult<Vec<ImpairRule>> {
    let mut text = serde_json::Deserializer::from_str(json);
    let described: Vec<ImpairDescription> = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        // Such as "[0].ports[2]".
        let path = error.path().to_string();
        let field = path.split_once("].").map_or_else(String::new, |(_, field)| format!("{field}: "));
        let why = error.inner().to_string();
        // Where in the text it is helps nobody: people have not seen it.
        let why = why.split_once(" at line ").map_or(why.as_str(), |(why, _)| why);
        refused(format!("impairment: {field}{why}"))
    })?;
    described.iter().map(|rule| rule.rule(ports).or_raise()).collect()
}

/// Checks the rules of a list for a device with this number of ports.
#[pyfunction]
fn check_impairments(json: &str, ports: usize) -> PyResult<()> {
    rules(json, ports).map(drop)
}

/// Replaces the rules of a device.
#[pyfunction]
fn set_impairments(py: Python<'_>, context: &Context, json: &str, seed: u64) -> PyResult<()> {
    let rules = rules(json, context.context.config().ports.len())?;
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let defaults = serde_json::to_string(&ImpairDescription::default())
        .unwrap_or_else(|_| unreachable!("numbers, names and null are JSON"));
    module.add("IMPAIRMENT_DEFAULTS", defaults)?;
    module.add_function(wrap_pyfunction!(check_impairments, module)?)?;
    module.add_function(wrap_pyfunction!(set_impairments, module)?)?;
    module.add_function(wrap_pyfunction!(impairment_hits, module)?)?;
    module.add_function(wrap_pyfunction!(impairment_last_hits, module)?)
}
