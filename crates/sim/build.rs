//! A number for the sources that a run depends on: only the build that has made a checkpoint can read it.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The crates whose code decides what happens in a run.
const CRATES: [&str; 6] = ["wire", "transport", "fabric", "workload", "scenario", "sim"];

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut hash = 0xCBF2_9CE4_8422_2325;
    for name in CRATES {
        let sources = here.with_file_name(name).join("src");
        println!("cargo::rerun-if-changed={}", sources.display());
        add_all(&sources, &mut hash);
    }
    println!("cargo::rustc-env=OPENMRC_SOURCES={hash}");
}

/// Adds every file below a directory, in the order of their names.
fn add_all(directory: &Path, hash: &mut u64) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            add_all(&path, hash);
        } else if let Ok(bytes) = fs::read(&path) {
            // FNV-1a.
            for byte in bytes {
                *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
            }
        }
    }
}
