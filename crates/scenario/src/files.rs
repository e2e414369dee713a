//! Reads the files that a scenario names: regular ones, within a limit.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Limit of a file of flows or a trace, bytes: a hundred million flows.
const MOST: u64 = 4 << 30;

/// The contents of a regular file.
///
/// # Errors
/// The reason in words, without the name of the file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    read_within(path, MOST)
}

fn read_within(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    // Before it is opened: that would wait for the other end of a named pipe.
    let kind = path.metadata().map_err(|error| reason(&error))?.file_type();
    if kind.is_dir() {
        return Err("Is a directory".into());
    }
    if !kind.is_file() {
        return Err("a device, pipe or socket; a regular file is expected".into());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| reason(&error))?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| reason(&error))?;
    if bytes.len() as u64 > most {
        return Err(format!("too large: at most {most} bytes are read"));
    }
    Ok(bytes)
}

/// The same as UTF-8 text.
///
/// # Errors
/// As of [`read`].
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    String::from_utf8(read(path)?).map_err(|_| "not UTF-8 text".to_owned())
}

/// What the system says, without the number that Rust adds.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        assert_eq!(
            read(Path::new("/dev/zero")),
            Err("a device, pipe or socket; a regular file is expected".into())
        );
        assert_eq!(read(Path::new("/")), Err("Is a directory".into()));
        let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let length = read(own).unwrap().len() as u64;
        assert!(read_within(own, length).is_ok());
        assert_eq!(
            read_within(own, length - 1),
            Err(format!("too large: at most {} bytes are read", length - 1))
        );
    }
}
