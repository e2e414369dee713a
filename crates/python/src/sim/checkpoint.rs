//! Checkpoints of a run. The number by which a checkpoint knows its scenario is made here.

use std::path::{Path, PathBuf};

use openmrc_sim::CheckpointError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use super::{ArgumentError, CheckedScenario, FormatError, PySimulation};

#[pymethods]
impl PySimulation {
    /// Writes a checkpoint of the run. Raises `ArgumentError` if it has state that cannot be written, `OSError` if the file
    /// cannot be.
    fn checkpoint(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let scenario = self.scenario.get();
        py.detach(|| self.world.checkpoint(&path, number_of(scenario))).map_err(|error| raised(&error, &path))
    }

    /// Goes on from a checkpoint of the same scenario, at the beginning of a run. Raises `FormatError` if it is not one,
    /// `OSError` if it cannot be read.
    fn resume(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let scenario = self.scenario.get();
        let read = py.detach(|| self.world.resume(&path, number_of(scenario)));
        read.map_err(|error| raised(&error, &path))
    }
}

/// A number for a scenario, with the contents of its files: FNV-1a of its JSON.
fn number_of(scenario: &CheckedScenario) -> u64 {
    let text = scenario.0.scenario().to_json();
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

fn raised(error: &CheckpointError, path: &Path) -> PyErr {
    let shown = path.display().to_string();
    match error {
        CheckpointError::Io(error) => match error.raw_os_error() {
            Some(code) => PyOSError::new_err((code, message_of(error), shown)),
            None => PyOSError::new_err(format!("{shown}: {error}")),
        },
        CheckpointError::Unsupported(_) => ArgumentError::new_err(format!("checkpoint: {error}")),
        _ => FormatError::new_err(format!("{shown}: {error}")),
    }
}

/// What the system says, without its number.
fn message_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
