//! A call of a collective operation, and the check of its arguments.

use std::time::Duration;

use openmrc_schedule::{Algorithm, Rank, Shape};

use crate::error::{Error, Result};
use crate::memory::Lent;
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
    /// The input; empty where this rank has none.
    pub input: Lent,
    /// The output; `None`: the input's memory.
    pub output: Option<Lent>,
    /// Execute it so, instead of by the tuning table.
    pub algorithm: Option<Algorithm>,
    /// Time limit.
    pub timeout: Duration,
}

/// Most bytes of the part of one rank: sums over all ranks stay within 64 bits.
const LONGEST: usize = 1 << 46;

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
        self.check_sizes(rank, ranks)?;
        self.check_overlap(rank, ranks)
    }

    fn output(&self) -> &Lent {
        self.output.as_ref().unwrap_or(&self.input)
    }

    /// Input and output hold what the operation reads and writes.
    fn check_sizes(&self, rank: Rank, ranks: usize) -> Result<()> {
        let (name, size) = (self.shape.name(), self.dtype.size());
        let longest = match &self.shape {
            Shape::ReduceScatter { counts } | Shape::AllGather { counts } => counts.iter().max(),
            Shape::AllToAll { send, recv } => send.iter().chain(recv).max(),
            Shape::AllReduce { count }
            | Shape::Broadcast { count, .. }
            | Shape::Reduce { count, .. }
            | Shape::Gather { count, .. }
            | Shape::Scatter { count, .. } => Some(count),
            Shape::Barrier => None,
        };
        if let Some(&longest) = longest.filter(|&&n| n > LONGEST / size) {
            return Err(Error::invalid(format!(
                "{name} of {longest} {} is longer than {LONGEST} bytes",
                self.dtype.name()
            )));
        }
        let (input, output) = self.shape.sizes(rank, ranks);
        for (what, lent, needed) in
            [("input", &self.input, input * size), ("output", self.output(), output * size)]
        {
            if lent.len() < needed {
                return Err(Error::invalid(format!(
                    "the {what} of {name} has {} bytes and needs {needed}",
                    lent.len()
                )));
            }
        }
        Ok(())
    }

    /// Input and output are separate, or one lies in the other where the operation would put it.
    fn check_overlap(&self, rank: Rank, ranks: usize) -> Result<()> {
        let (input, output) = self.shape.sizes(rank, ranks);
        let size = self.dtype.size();
        let (a, b) = (self.input.data() as usize, self.output().data() as usize);
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
