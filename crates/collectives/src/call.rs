//! A call of a collective operation, and the check of its arguments.

use std::time::Duration;

use openmrc_schedule::{Algorithm, Rank, Shape};

use crate::error::{Error, Result};
use crate::types::{DataType, ReduceOp};

/// An operation to begin.
pub struct Call {
    /// Which one.
    pub shape: Shape,
    /// Type of its elements.
    pub dtype: DataType,
    /// How they are reduced, by those that reduce.
    pub op: ReduceOp,
    /// Factor of every input before it is reduced (premul_sum).
    pub factor: Option<f64>,
    /// First byte of the input.
    pub input: *const u8,
    /// First byte of the output.
    pub output: *mut u8,
    /// Execute it so, instead of by the tuning table.
    pub algorithm: Option<Algorithm>,
    /// Time limit.
    pub timeout: Duration,
}

impl Call {
    /// Checks the arguments of a call of one of `ranks`.
    pub(crate) fn check(&self, rank: Rank, ranks: usize) -> Result<()> {
        let Call { shape, dtype, op, .. } = self;
        let counts = match shape {
            Shape::ReduceScatter { counts } | Shape::AllGather { counts } => counts.len(),
            Shape::AllToAll { send, recv } if send.len() == recv.len() => send.len(),
            Shape::AllToAll { .. } => 0,
            _ => ranks,
        };
        if counts != ranks {
            return Err(Error::invalid(format!(
                "{} needs one count for each of {} ranks",
                shape.name(),
                ranks
            )));
        }
        if let Some(root) = shape.root().filter(|&root| root >= ranks) {
            return Err(Error::invalid(format!(
                "root {root} does not exist: there are ranks 0 to {}",
                ranks - 1
            )));
        }
        if let Shape::AllToAll { send, recv } = shape
            && send[rank] != recv[rank]
        {
            return Err(Error::invalid(format!(
                "rank {} sends {} elements to itself and receives {}",
                rank, send[rank], recv[rank]
            )));
        }
        if shape.reduces() && !op.fits(*dtype) {
            return Err(Error::invalid(format!("there is no {} of {}", op.name(), dtype.name())));
        }
        if self.factor.is_some() && (!shape.reduces() || *op != ReduceOp::Sum) {
            return Err(Error::invalid("a factor belongs to a sum"));
        }
        if let Some(algorithm) = self.algorithm.filter(|&a| !shape.allows(a, ranks)) {
            return Err(Error::invalid(format!(
                "{} of {} ranks cannot be executed by {}",
                shape.name(),
                ranks,
                algorithm.name()
            )));
        }
        self.check_overlap(rank, ranks)
    }

    /// Input and output are separate, or one lies in the other where the operation would put it.
    fn check_overlap(&self, rank: Rank, ranks: usize) -> Result<()> {
        let (input, output) = self.shape.sizes(rank, ranks);
        let size = self.dtype.size();
        let (a, b) = (self.input as usize, self.output as usize);
        let (input, output) = (input * size, output * size);
        if a + input <= b || b + output <= a || input == 0 || output == 0 {
            return Ok(());
        }
        let before = |counts: &[usize]| counts[..rank].iter().sum::<usize>() * size;
        let in_place = match &self.shape {
            Shape::ReduceScatter { counts } => b == a + before(counts),
            Shape::AllGather { counts } => a == b + before(counts),
            Shape::Gather { count, .. } => a == b + rank * count * size,
            Shape::Scatter { count, .. } => b == a + rank * count * size,
            Shape::AllToAll { .. } => false,
            _ => a == b,
        };
        if in_place {
            return Ok(());
        }
        Err(Error::invalid(format!("input and output of {} overlap", self.shape.name())))
    }
}
