//! Values as bytes, one after the other.

use std::io::{BufReader, BufWriter, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::CheckpointError;

/// Takes values, and counts and sums up their bytes.
pub(crate) struct Writer<'a>(BufWriter<Summed<'a>>);

/// Bytes on their way to a file.
struct Summed<'a> {
    to: &'a mut dyn Write,
    sum: crc32fast::Hasher,
    length: u64,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.sum.update(&bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        let summed = Summed { to, sum: crc32fast::Hasher::new(), length: 0 };
        Writer(BufWriter::with_capacity(1 << 16, summed))
    }

    /// Adds a value.
    pub fn put<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CheckpointError> {
        match postcard::to_io(value, &mut self.0) {
            Ok(_) => Ok(()),
            // The file, which says why when it is asked again; or a value that is not one of ours.
            Err(_) => Err(match self.0.flush() {
                Err(error) => CheckpointError::Io(error),
                Ok(()) => CheckpointError::Unsupported("a class of your own"),
            }),
        }
    }

    /// The number of bytes and their checksum.
    pub(super) fn finish(mut self) -> Result<(u64, u32), CheckpointError> {
        self.0.flush()?;
        let Summed { sum, length, .. } = self.0.into_inner().map_err(|error| error.into_error())?;
        Ok((length, sum.finalize()))
    }
}

/// Gives values back, in their order.
pub(crate) struct Reader<'a>(BufReader<&'a mut dyn Read>);

impl<'a> Reader<'a> {
    /// Reads no further than `from` goes.
    pub(super) fn new(from: &'a mut dyn Read) -> Self {
        Reader(BufReader::with_capacity(1 << 16, from))
    }

    /// The next value.
    pub fn get<T: DeserializeOwned>(&mut self) -> Result<T, CheckpointError> {
        // Room for the bytes of a number.
        let mut room = [0; 16];
        let read = postcard::from_io((&mut self.0, &mut room));
        let (value, _) = read.map_err(|_| CheckpointError::Damaged)?;
        Ok(value)
    }

    /// The next list, which has as many values as the one whose place it takes.
    pub fn replace<T: DeserializeOwned>(&mut self, list: &mut Vec<T>) -> Result<(), CheckpointError> {
        let read: Vec<T> = self.get()?;
        if read.len() != list.len() {
            return Err(CheckpointError::Damaged);
        }
        *list = read;
        Ok(())
    }

    /// Whether all has been read.
    pub(super) fn is_at_end(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}
