//! Attributes of queue pairs between Python and the NIC, driven by the NIC's list of them.

use std::net::SocketAddr;

use openmrc_nic::attr::{ATTRIBUTES, Step};
use openmrc_nic::{Access, QpAttr, qp_attributes};
use openmrc_transport::mrc::Capabilities;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::convert::{address_pairs, out_of_range, socket_addresses};

/// A value of an attribute in Python and in the NIC.
trait Value: Sized {
    /// What Python has for it.
    type Python: for<'a, 'py> FromPyObject<'a, 'py> + for<'py> IntoPyObject<'py>;

    /// The NIC's value; `None` where there is none.
    fn from_python(value: Self::Python) -> PyResult<Option<Self>>;
    fn to_python(&self) -> Self::Python;
}

macro_rules! same_in_python {
    ($($type:ty),*) => {
        $(impl Value for $type {
            type Python = $type;

            fn from_python(value: $type) -> PyResult<Option<$type>> {
                Ok(Some(value))
            }

            fn to_python(&self) -> $type {
                *self
            }
        })*
    };
}

same_in_python!(u8, u16, u32, u64, bool);

impl Value for Access {
    type Python = u8;

    fn from_python(bits: u8) -> PyResult<Option<Self>> {
        Ok(Access::from_bits(bits))
    }

    fn to_python(&self) -> u8 {
        self.bits()
    }
}

/// `openmrc.verbs.Capabilities`.
impl Value for Capabilities {
    type Python = u8;

    fn from_python(bits: u8) -> PyResult<Option<Self>> {
        Ok(Some(Capabilities {
            trim_nack: bits & 1 != 0,
            dynamic_mpr: bits & 2 != 0,
            service_time: bits & 4 != 0,
            overflow_reports: bits & 8 != 0,
        }))
    }

    fn to_python(&self) -> u8 {
        let Capabilities { trim_nack, dynamic_mpr, service_time, overflow_reports } = *self;
        [trim_nack, dynamic_mpr, service_time, overflow_reports]
            .into_iter()
            .enumerate()
            .fold(0, |bits, (i, set)| bits | u8::from(set) << i)
    }
}

impl Value for Vec<SocketAddr> {
    type Python = Vec<(String, u16)>;

    fn from_python(list: Vec<(String, u16)>) -> PyResult<Option<Self>> {
        socket_addresses(list).map(Some)
    }

    fn to_python(&self) -> Vec<(String, u16)> {
        address_pairs(self)
    }
}

macro_rules! define {
    ($($(#[$doc:meta])* $name:ident: $type:ty $(= $default:expr)?, $step:ident, $allowed:expr;)*) => {
        /// The attributes of an `openmrc.verbs.QpAttr`.
        pub fn attributes(from: &Bound<'_, PyAny>) -> PyResult<QpAttr> {
            let py = from.py();
            Ok(QpAttr { $($name: given::<$type>(from, pyo3::intern!(py, stringify!($name)))?),* })
        }

        /// The inverse of [`attributes`]: None for those that are not set.
        pub fn attribute_fields<'py>(py: Python<'py>, attr: &QpAttr) -> PyResult<Bound<'py, PyDict>> {
            let out = PyDict::new(py);
            $(out.set_item(stringify!($name), attr.$name.as_ref().map(Value::to_python))?;)*
            Ok(out)
        }
    };
}

qp_attributes!(define);

/// An attribute, if it is not None.
fn given<T: Value>(from: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyResult<Option<T>> {
    let value = from.getattr(name)?;
    if value.is_none() {
        return Ok(None);
    }
    let known = match value.extract::<T::Python>() {
        Ok(python) => T::from_python(python)?,
        Err(_) => None,
    };
    known.map(Some).ok_or_else(|| {
        let name = name.to_string();
        let attribute = ATTRIBUTES.iter().find(|attribute| attribute.name == name);
        out_of_range(&value, &name, &attribute.map_or_else(String::new, |one| one.allowed.to_string()))
    })
}

/// The last step at which an attribute is taken, and whether that step needs it.
fn last_step(step: Step) -> (&'static str, bool) {
    match step {
        Step::UntilRtr | Step::AtRtr => ("RTR", false),
        Step::NeededAtRtr => ("RTR", true),
        Step::UntilRts => ("RTS", false),
        Step::NeededAtRts => ("RTS", true),
    }
}

/// Adds `QP_ATTRIBUTES`: by name what is allowed, the last step at which it is taken, whether it is needed there, and
/// whether it may come earlier.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let list = PyDict::new(module.py());
    for attribute in ATTRIBUTES {
        let (step, needed) = last_step(attribute.step);
        let early = matches!(attribute.step, Step::UntilRtr | Step::UntilRts);
        list.set_item(attribute.name, (attribute.allowed.to_string(), step, needed, early))?;
    }
    module.add("QP_ATTRIBUTES", list)
}
