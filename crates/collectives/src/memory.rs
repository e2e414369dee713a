//! The memory of one collective operation: what the caller gives and gets, and what the operation needs for itself.

use openmrc_nic::MemoryRegion;
use openmrc_schedule::{Memory, Program, Span};

use crate::error::Result;
use crate::kernels;
use crate::link::Link;
use crate::remote::COPIED;
use crate::types::DataType;

/// The caller's memory, as addresses. The caller keeps it valid until the operation has ended.
#[derive(Clone, Copy)]
pub struct Buffers {
    pub input: *const u8,
    pub output: *mut u8,
}

// SAFETY: the caller promises that the memory may be used from any thread until the operation has ended.
unsafe impl Send for Buffers {}

/// The caller's memory, scratch memory, and what of both is registered with the NIC.
pub struct OperationMemory {
    buffers: Buffers,
    scratch: Vec<u8>,
    /// A copy of the input, where it is scaled before it is used.
    scaled: Option<Vec<u8>>,
    /// Registered memory: of input, output and scratch.
    regions: [Option<MemoryRegion>; 3],
}

impl OperationMemory {
    /// Memory with `scratch` bytes of the operation's own.
    ///
    /// # Safety
    /// The buffers contain every span that is read or written, and stay valid and untouched by others until the operation
    /// has ended.
    pub unsafe fn new(buffers: Buffers, scratch: usize) -> OperationMemory {
        OperationMemory { buffers, scratch: vec![0; scratch], scaled: None, regions: [const { None }; 3] }
    }

    /// Uses a scaled copy of the input.
    ///
    /// # Safety
    /// The input has `len` elements.
    pub unsafe fn scale_input(&mut self, len: usize, factor: f64, dtype: DataType) {
        let mut scaled = vec![0u8; len * dtype.size()];
        // SAFETY: both have `len` elements.
        unsafe { kernels::scale(dtype, scaled.as_mut_ptr(), self.buffers.input, len, factor) };
        self.buffers.input = scaled.as_ptr();
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
        let bases = [self.buffers.input.cast_mut(), self.buffers.output, self.scratch.as_mut_ptr()];
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
                Memory::Input => self.buffers.input.add(span.offset),
                Memory::Output => self.buffers.output.add(span.offset).cast_const(),
                Memory::Scratch => self.scratch.as_ptr().add(span.offset),
            }
        }
    }

    /// Address of a span that is written.
    pub fn write(&self, span: Span) -> *mut u8 {
        self.read(span).cast_mut()
    }
}
