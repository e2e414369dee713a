//! Messages one by one, in the scenario or in a CSV file: `src,dst,bytes,start_us`, header optional, hosts as `12` or
//! `h12`.

use std::path::Path;

use openmrc_workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ScenarioError;
use crate::files;
use crate::numbers::{Bytes, Host, LONGEST_MESSAGE, Micros};
use crate::ranks::{Volume, exists};

/// Messages one by one.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Flows {
    /// When the pattern begins; the times of messages count from here.
    pub start_us: Micros,
    /// Source, destination, bytes and start in microseconds of each message.
    pub flows: Vec<Flow>,
    /// A CSV file with more of them.
    pub file: Option<String>,
}

/// A message: source, destination, bytes, start in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Flow(pub Host, pub Host, pub Bytes, pub Micros);

impl Flows {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        if self.flows.is_empty() && self.file.is_none() {
            return Err(ScenarioError::at("flows", "there are none, and no file"));
        }
        Ok(())
    }

    pub(crate) fn check_fit(&self, hosts: u32) -> Result<(), ScenarioError> {
        for (index, flow) in self.flows.iter().enumerate() {
            flow.check_fit(hosts).map_err(|error| error.inside(index).inside("flows"))?;
        }
        Ok(())
    }

    /// The same with the messages of the file in it, between hosts of a fabric of this many.
    ///
    /// # Errors
    /// If the file cannot be read or is no list of messages; the message names file and line.
    pub(crate) fn with_file(mut self, hosts: u32) -> Result<Self, ScenarioError> {
        if let Some(file) = self.file.take() {
            let read = read(Path::new(&file), hosts);
            self.flows.extend(read.map_err(|message| {
                let message = format!("{file}{message}");
                ScenarioError { in_file: true, ..ScenarioError::at("file", message) }
            })?);
        }
        Ok(self)
    }

    pub(crate) fn volume(&self) -> Volume {
        let flows = self.flows.len() as u64;
        Volume::new(flows, flows)
    }

    pub(crate) fn last_start_us(&self) -> f64 {
        self.flows.iter().map(|Flow(.., start)| start.get()).fold(0.0, f64::max)
    }

    pub(crate) fn workload(&self) -> Workload {
        let mut workload = Workload::default();
        for Flow(src, dst, bytes, start) in &self.flows {
            let connection = workload.connect(src.u32(), dst.u32());
            workload.send(connection, bytes.u32(), start.time());
        }
        workload
    }
}

impl Flow {
    fn check_fit(&self, hosts: u32) -> Result<(), ScenarioError> {
        exists(self.0, hosts)?;
        exists(self.1, hosts)?;
        if self.0 == self.1 {
            return Err(ScenarioError::new(format!("host h{} would send to itself", self.0.get())));
        }
        Ok(())
    }
}

const COLUMNS: [&str; 4] = ["src", "dst", "bytes", "start_us"];

/// The flows of a file. Errors go on after the name of the file: `:7: ...` in a line, `: ...` of the whole.
fn read(path: &Path, hosts: u32) -> Result<Vec<Flow>, String> {
    let text = files::read_text(path).map_err(|what| format!(": {what}"))?;
    parse(text.strip_prefix('\u{feff}').unwrap_or(&text), hosts)
}

fn parse(text: &str, hosts: u32) -> Result<Vec<Flow>, String> {
    let mut flows = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let cells: Vec<&str> = line.split(',').map(|cell| unquoted(cell.trim())).collect();
        if cells.iter().all(|cell| cell.is_empty()) || cells[0].starts_with('#') {
            continue;
        }
        if number == 1 && cells[0] == COLUMNS[0] {
            if cells.len() < 3 || !COLUMNS.starts_with(&cells) {
                return Err(format!(":1: the columns are {}", COLUMNS.join(",")));
            }
            continue;
        }
        flows.push(flow(&cells, hosts).map_err(|message| format!(":{number}: {message}"))?);
    }
    if flows.is_empty() { Err(": no flows in it".into()) } else { Ok(flows) }
}

fn unquoted(cell: &str) -> &str {
    cell.strip_prefix('"').and_then(|cell| cell.strip_suffix('"')).map_or(cell, str::trim)
}

fn flow(cells: &[&str], hosts: u32) -> Result<Flow, String> {
    if !(3..=4).contains(&cells.len()) {
        return Err(format!("{} columns, expected {}", cells.len(), COLUMNS.join(",")));
    }
    let host = |column: usize| {
        let cell = cells[column].strip_prefix('h').unwrap_or(cells[column]);
        let value = whole(cell).map_err(|message| format!("{}: {message}", COLUMNS[column]))?;
        let last = u64::from(hosts) - 1;
        if value > last {
            let message = format!("host h{value} does not exist, the fabric has h0 to h{last}");
            return Err(format!("{}: {message}", COLUMNS[column]));
        }
        Ok(Host::of(value))
    };
    let (src, dst) = (host(0)?, host(1)?);
    if src == dst {
        return Err(format!("host h{} would send to itself", src.get()));
    }
    let bytes = whole(cells[2]).map_err(|message| format!("bytes: {message}"))?;
    if !(1..=LONGEST_MESSAGE).contains(&bytes) {
        return Err(format!("bytes: {bytes} is out of range: 1 to {LONGEST_MESSAGE}"));
    }
    let start = match cells.get(3) {
        None => Micros::ZERO,
        Some(cell) => cell
            .parse()
            .ok()
            .and_then(Micros::new)
            .ok_or_else(|| format!("start_us: {} is not a time from 0 to 1e9 us", shown(cell)))?,
    };
    Ok(Flow(src, dst, Bytes::of(bytes), start))
}

fn whole(cell: &str) -> Result<u64, String> {
    if cell.is_empty() || !cell.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{} is not a whole number", shown(cell)));
    }
    cell.parse().map_err(|_| format!("{} is out of range", shown(cell)))
}

/// A cell in a message: not its control characters, and not all of it.
fn shown(cell: &str) -> String {
    if cell.is_empty() {
        return "nothing".into();
    }
    cell.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text, 8).expect_err(text)
    }

    #[test]
    fn flows_are_read_with_or_without_header_start_and_h() {
        let flows =
            parse("src,dst,bytes,start_us\nh0,h1,5000,0\n\n# none\n2, 3,7000,4.5\n\"4\",5,1\n", 8).unwrap();
        let plain = |Flow(src, dst, bytes, start): &Flow| (src.get(), dst.get(), bytes.get(), start.get());
        assert_eq!(
            flows.iter().map(plain).collect::<Vec<_>>(),
            [(0, 1, 5000, 0.0), (2, 3, 7000, 4.5), (4, 5, 1, 0.0)]
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        assert_eq!(error("0,1\n"), ":1: 2 columns, expected src,dst,bytes,start_us");
        assert_eq!(error("src,dst,bytes\n0,x,5\n"), ":2: dst: x is not a whole number");
        assert_eq!(error("src,bytes,dst\n"), ":1: the columns are src,dst,bytes,start_us");
        assert_eq!(error("0,8,5"), ":1: dst: host h8 does not exist, the fabric has h0 to h7");
        assert_eq!(error("3,h3,5"), ":1: host h3 would send to itself");
        assert_eq!(error("0,1,0"), ":1: bytes: 0 is out of range: 1 to 2147483648");
        assert_eq!(error("0,1,99999999999999999999"), ":1: bytes: 99999999999999999999 is out of range");
        assert_eq!(error("0,1,5,-3"), ":1: start_us: -3 is not a time from 0 to 1e9 us");
        assert_eq!(error("0,1,5,"), ":1: start_us: nothing is not a time from 0 to 1e9 us");
        assert_eq!(error("# nothing\n"), ": no flows in it");
    }
}
