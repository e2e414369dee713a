//! Plants the faults of `cargo mutants --list --json` into a copy of the sources, each behind a switch.
//!
//! ```text
//! openmrc-mutants TREE < {"faults": [...], "constant": [...]} > {"sites": [{"faults": [1, 2]}, ...]}
//! ```
//!
//! TREE is rewritten. A fault is a number; the environment variable MUTANT switches one on. A site is a place with one
//! or several faults; its number, the position in `sites`, is what the program writes to the file MUTANT_COVER when it
//! comes there. A constant function that is used where the compiler needs one (`constant`, by name) is left as it is;
//! all others become ordinary ones, as constants have no switch.

mod plant;

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What every crate with faults gets: the switch.
const SWITCH: &str = include_str!("switch.rs");

#[derive(Deserialize)]
struct Request {
    faults: Vec<plant::Fault>,
    constant: HashSet<String>,
}

#[derive(Serialize)]
struct Planted {
    sites: Vec<plant::Site>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let tree = std::env::args().nth(1).ok_or("usage: openmrc-mutants TREE < REQUEST > PLANTED")?;
    let tree = Path::new(&tree);
    let request: Request = serde_json::from_reader(std::io::stdin().lock())?;
    let mut files: BTreeMap<String, Vec<plant::Fault>> = BTreeMap::new();
    for fault in request.faults {
        files.entry(fault.file.clone()).or_default().push(fault);
    }
    let mut sites = Vec::new();
    let mut crates = HashSet::new();
    for (file, faults) in files {
        let path = tree.join(&file);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let planted = plant::plant(&text, faults, &request.constant, &mut sites);
        let planted = planted.map_err(|error| format!("{}: {error}", path.display()))?;
        std::fs::write(&path, planted)?;
        if let Some((root, _)) = file.split_once("/src/") {
            crates.insert(root.to_owned());
        }
    }
    for root in crates {
        let source = tree.join(root).join("src");
        let lib = std::fs::read_to_string(source.join("lib.rs"))?;
        std::fs::write(source.join("lib.rs"), lib + "#[doc(hidden)]\npub mod __switch;\n")?;
        std::fs::write(source.join("__switch.rs"), SWITCH)?;
    }
    serde_json::to_writer(std::io::stdout().lock(), &Planted { sites })?;
    Ok(())
}
