//! The memory of one collective operation: what the caller lends, and what the operation needs for itself.

use std::any::Any;

use openmrc_nic::MemoryRegion;
use openmrc_schedule::{Memory, Program, Span};

use crate::error::Result;
use crate::kernels;
use crate::link::Link;
use crate::remote::COPIED;
use crate::types::DataType;

/// Memory that a caller lends to an operation, with what keeps it in place. The operation owns both: the owner is
/// dropped before the work says that it has ended, from whichever thread ends it.
pub struct Lent {
    data: *mut u8,
    len: usize,
    /// Dropped last; `None` where another loan of the operation covers the memory.
    _owner: Option<Box<dyn Any + Send>>,
}

// SAFETY: who lends memory promises that it may be used from any thread; the owner can be dropped by any.
unsafe impl Send for Lent {}

impl Lent {
    /// `len` bytes at `data`, which stay in place until `owner` is dropped.
    ///
    /// # Safety
    /// Until `owner` is dropped, the bytes are valid for reads from any thread, and for writes if an operation writes
    /// them; nobody writes what an operation reads, or reads what it writes.
    pub unsafe fn new(data: *mut u8, len: usize, owner: Box<dyn Any + Send>) -> Lent {
        // Exporters of nothing may give no address.
        let data = if len == 0 { std::ptr::dangling_mut() } else { data };
        Lent { data, len, _owner: Some(owner) }
    }

    /// No memory.
    pub const fn empty() -> Lent {
        Lent { data: std::ptr::dangling_mut(), len: 0, _owner: None }
    }

    /// The first byte.
    pub fn data(&self) -> *mut u8 {
        self.data
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The caller's memory, scratch memory, and what of both is registered with the NIC.
pub struct OperationMemory {
    /// Registered memory: of input, output and scratch. Dropped before the memory itself.
    regions: [Option<MemoryRegion>; 3],
    /// First byte of the input, or of its scaled copy.
    input: *const u8,
    output: *mut u8,
    scratch: Vec<u8>,
    /// A copy of the input, where it is scaled before it is used.
    scaled: Option<Vec<u8>>,
    _lent: [Lent; 2],
}

// SAFETY: the pointers lead into the loans, which are `Send`, or into the operation's own vectors.
unsafe impl Send for OperationMemory {}

impl OperationMemory {
    /// The memory that was lent, and `scratch` bytes of the operation's own. Without an output the input is the output.
    ///
    /// # Safety
    /// Input and output contain every span of them that is read or written.
    pub unsafe fn new(input: Lent, output: Option<Lent>, scratch: usize) -> OperationMemory {
        let (from, to) = (input.data, output.as_ref().map_or(input.data, Lent::data));
        OperationMemory {
            regions: [const { None }; 3],
            input: from,
            output: to,
            scratch: vec![0; scratch],
            scaled: None,
            _lent: [input, output.unwrap_or_else(Lent::empty)],
        }
    }

    /// Uses a scaled copy of the input.
    ///
    /// # Safety
    /// The input has `len` elements.
    pub unsafe fn scale_input(&mut self, len: usize, factor: f64, dtype: DataType) {
        let mut scaled = vec![0u8; len * dtype.size()];
        // SAFETY: both have `len` elements.
        unsafe { kernels::scale(dtype, scaled.as_mut_ptr(), self.input, len, factor) };
        self.input = scaled.as_ptr();
        self.scaled = Some(scaled);
    }

    /// Registers the memory that the NIC reads. `register` makes a region of an address and a length.
    pub fn register(
        &mut self,
        program: &Program,
        links: &[Option<Link>],
        register: impl Fn(*mut u8, usize) -> Result<MemoryRegion>,
    ) -> Result<()> {
        let mut ends = [0usize; 3];
        for send in &program.sends {
            let remote = links[send.to].as_ref().is_some_and(|link| !link.is_local());
            if remote && send.from.len > COPIED {
                let end = &mut ends[send.from.memory as usize];
                *end = (*end).max(send.from.offset + send.from.len);
            }
        }
        let bases = [self.input.cast_mut(), self.output, self.scratch.as_mut_ptr()];
        for i in 0..3 {
            if ends[i] > 0 {
                self.regions[i] = Some(register(bases[i], ends[i])?);
            }
        }
        Ok(())
    }

    /// The key of the region in which a span lies, if it is registered.
    pub fn lkey(&self, span: Span) -> Option<u32> {
        self.regions[span.memory as usize].as_ref().map(MemoryRegion::lkey)
    }

    /// Address of a span.
    pub fn read(&self, span: Span) -> *const u8 {
        // SAFETY: programs stay within the memory that `new`'s caller promised.
        unsafe {
            match span.memory {
                Memory::Input => self.input.add(span.offset),
                Memory::Output => self.output.add(span.offset).cast_const(),
                Memory::Scratch => self.scratch.as_ptr().add(span.offset),
            }
        }
    }

    /// Address of a span that is written.
    pub fn write(&self, span: Span) -> *mut u8 {
        self.read(span).cast_mut()
    }
}
