//! A checkpoint as a file: a header, and the state of the world.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{CheckpointError, Reader, Writer};
use crate::World;

const MAGIC: [u8; 8] = *b"openmrcK";
/// Magic, sources, scenario, threads, length, checksum of the state, checksum of all that.
const HEADER: usize = 8 + 8 + 8 + 4 + 8 + 4 + 4;

/// The sources that this code was built from.
fn sources() -> u64 {
    env!("OPENMRC_SOURCES").parse().unwrap_or(0)
}

/// Whose state it is.
struct Header {
    scenario: u64,
    threads: u32,
    length: u64,
    sum: u32,
}

impl Header {
    fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(sources().to_le_bytes());
        bytes.extend(self.scenario.to_le_bytes());
        bytes.extend(self.threads.to_le_bytes());
        bytes.extend(self.length.to_le_bytes());
        bytes.extend(self.sum.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes.try_into().unwrap_or([0; HEADER])
    }

    /// Reads a header, and says whose state this is if it is not that of `scenario` in `threads`.
    fn read(from: &mut impl Read, scenario: u64, threads: u32) -> Result<Self, CheckpointError> {
        let mut bytes = Vec::with_capacity(HEADER);
        from.take(HEADER as u64).read_to_end(&mut bytes)?;
        if !bytes.starts_with(&MAGIC) {
            return Err(CheckpointError::Foreign);
        }
        let Ok::<[u8; HEADER], _>(bytes) = bytes.try_into() else { return Err(CheckpointError::Damaged) };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let found = Header { scenario: word(16), threads: half(24), length: word(28), sum: half(36) };
        if crc32fast::hash(&bytes[..HEADER - 4]) != half(HEADER - 4) {
            return Err(CheckpointError::Damaged);
        }
        if word(8) != sources() {
            return Err(CheckpointError::Build);
        }
        if found.threads != threads {
            return Err(CheckpointError::Threads(found.threads, threads));
        }
        if found.scenario != scenario {
            return Err(CheckpointError::Scenario);
        }
        Ok(found)
    }
}

/// A file beside another one. It is removed unless it takes that one's place.
struct Beside(PathBuf);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl World {
    /// Writes a checkpoint of the run, beside `path` first: what was there stays whole until the new one is. `scenario`
    /// is a number for the run's scenario, which [`World::resume`] compares.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`] for what cannot be written, [`CheckpointError::Io`] if the file cannot be.
    pub fn checkpoint(&self, path: &Path, scenario: u64) -> Result<(), CheckpointError> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.part", std::process::id()));
        let beside = Beside(path.with_file_name(name));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside.0)?;
        file.write_all(&[0; HEADER])?;
        let mut writer = Writer::new(&mut file);
        self.save(&mut writer)?;
        let (length, sum) = writer.finish()?;
        let header = Header { scenario, threads: self.threads(), length, sum };
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header.bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside.0, path)?;
        Ok(())
    }

    /// Goes on where the run was that has written a checkpoint. The world is new, of the same scenario and with the same
    /// number of threads. After an error it is of no use.
    ///
    /// # Errors
    /// [`CheckpointError`] if the file is not a whole checkpoint of this scenario by this build.
    pub fn resume(&mut self, path: &Path, scenario: u64) -> Result<(), CheckpointError> {
        let mut file = File::open(path)?;
        let header = Header::read(&mut file, scenario, self.threads())?;
        if file.metadata()?.len() != header.length.saturating_add(HEADER as u64)
            || sum_of(&mut file)? != header.sum
        {
            return Err(CheckpointError::Damaged);
        }
        file.seek(SeekFrom::Start(HEADER as u64))?;
        let mut state = (&mut file).take(header.length);
        let mut reader = Reader::new(&mut state);
        self.load(&mut reader)?;
        if reader.is_at_end() { Ok(()) } else { Err(CheckpointError::Damaged) }
    }
}

/// The checksum of the rest of a file.
fn sum_of(file: &mut File) -> Result<u32, CheckpointError> {
    let (mut sum, mut reader) = (crc32fast::Hasher::new(), BufReader::new(file));
    let mut bytes = vec![0; 1 << 16];
    loop {
        match reader.read(&mut bytes)? {
            0 => return Ok(sum.finalize()),
            count => sum.update(&bytes[..count]),
        }
    }
}
