//! Devices from their description, the dataclass `openmrc.verbs.Device`.

use openmrc_nic::config::Form;
use openmrc_nic::{self as nic, DEVICE_OPTIONS, DeviceConfig, PortConfig, Setting};
use pyo3::IntoPyObjectExt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::context::Context;
use super::convert::{field, ip_address};
use super::error::OrRaise;

/// A device that can be opened.
#[pyclass(frozen, module = "openmrc._core")]
pub struct Device(nic::Device);

#[pymethods]
impl Device {
    /// A device from an object with the attributes of `openmrc.verbs.Device`. None means the default.
    #[new]
    fn new(description: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Device(nic::Device::new(config(description)?).or_raise()?))
    }

    /// Opens the sockets and starts the engine.
    fn open(&self, py: Python<'_>) -> PyResult<Context> {
        py.detach(|| self.0.open()).or_raise().map(Context::new)
    }
}

fn config(from: &Bound<'_, PyAny>) -> PyResult<DeviceConfig> {
    let mut config = DeviceConfig { name: from.getattr("name")?.extract()?, ..DeviceConfig::default() };
    for port in from.getattr("ports")?.try_iter()? {
        let port = port?;
        config.ports.push(PortConfig {
            addr: ip_address(&port.getattr("addr")?.extract::<String>()?)?,
            udp_port: field!(port, "udp_port", "1 to 65535")?,
            source_ports: field!(port, "source_ports", "a sequence of numbers, 1 to 65535,")?,
        });
    }
    for option in DEVICE_OPTIONS {
        config.set(option.name, &setting(&from.getattr(option.name)?)?).or_raise()?;
    }
    Ok(config)
}

/// A value of Python as the NIC reads it. A dataclass is a table of its fields.
fn setting(value: &Bound<'_, PyAny>) -> PyResult<Setting> {
    let py = value.py();
    if value.is_none() {
        return Ok(Setting::Unset);
    }
    if let Ok(flag) = value.extract() {
        return Ok(Setting::Flag(flag));
    }
    if let Ok(integer) = value.extract() {
        return Ok(Setting::Integer(integer));
    }
    if let Ok(number) = value.extract() {
        return Ok(Setting::Number(number));
    }
    if let Ok(text) = value.extract() {
        return Ok(Setting::Text(text));
    }
    if let Ok(fields) = value.getattr(intern!(py, "__dataclass_fields__")) {
        let names: Vec<String> = fields.try_iter()?.map(|name| name?.extract()).collect::<PyResult<_>>()?;
        let field = |name: String| Ok((name.clone(), setting(&value.getattr(name)?)?));
        return names.into_iter().map(field).collect::<PyResult<_>>().map(Setting::Table);
    }
    if let Ok(list) = value.cast::<PyDict>() {
        let entry =
            |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((name.extract()?, setting(&value)?));
        return list.iter().map(entry).collect::<PyResult<_>>().map(Setting::Table);
    }
    if let Ok(list) = value.try_iter() {
        return list.map(|one| setting(&one?)).collect::<PyResult<_>>().map(Setting::List);
    }
    Ok(Setting::Other(value.repr()?.to_string()))
}

/// What the form of an option's values is called.
fn form_name(form: Form) -> &'static str {
    match form {
        Form::Flag => "flag",
        Form::Integer => "integer",
        Form::Number => "number",
        Form::Name => "name",
        Form::Integers => "integers",
        Form::NameOrTexts => "name or texts",
        Form::Table => "table",
    }
}

/// The inverse of [`setting`].
fn to_python<'py>(py: Python<'py>, value: &Setting) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Setting::Unset => py.None().into_bound(py),
        Setting::Flag(flag) => flag.into_bound_py_any(py)?,
        Setting::Integer(integer) => integer.into_bound_py_any(py)?,
        Setting::Number(number) => number.into_bound_py_any(py)?,
        Setting::Text(text) | Setting::Other(text) => text.into_bound_py_any(py)?,
        Setting::List(list) => {
            let list = list.iter().map(|one| to_python(py, one)).collect::<PyResult<Vec<_>>>()?;
            list.into_bound_py_any(py)?
        }
        Setting::Table(table) => {
            let out = PyDict::new(py);
            for (name, value) in table {
                out.set_item(name, to_python(py, value)?)?;
            }
            out.into_any()
        }
    })
}

/// Adds `DEVICE_OPTIONS`: of every option, by name, the form of its values, its default, its documentation and what is
/// allowed.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let list = PyDict::new(py);
    for option in DEVICE_OPTIONS {
        let one = PyDict::new(py);
        one.set_item("form", form_name(option.form))?;
        one.set_item("default", to_python(py, &option.default())?)?;
        one.set_item("doc", option.doc)?;
        one.set_item("allowed", option.allowed.to_string())?;
        list.set_item(option.name, one)?;
    }
    module.add("DEVICE_OPTIONS", list)
}
