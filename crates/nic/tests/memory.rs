//! Memory regions: what may be registered, read and written, and until when (docs/spec/api.md, "Objects").

mod common;

use std::ptr;
use std::sync::Arc;

use common::*;
use openmrc_nic::*;

const RW: Access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
const PAGE: usize = 4096;

fn domain() -> (Context, ProtectionDomain) {
    let context = Device::new(device(1)).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

/// A file of two pages and its mapping. They are never closed and unmapped.
fn mapped_file() -> (i32, *mut u8) {
    // SAFETY: a new file and a new mapping.
    let (file, at) = unsafe {
        let file = libc::memfd_create(c"memory".as_ptr(), 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        (file, libc::mmap(ptr::null_mut(), 2 * PAGE, access, libc::MAP_SHARED, file, 0))
    };
    assert_ne!(at, libc::MAP_FAILED);
    set_length(file, 2 * PAGE);
    (file, at.cast())
}

fn set_length(file: i32, len: usize) {
    // SAFETY: it is a file of this test.
    assert_eq!(unsafe { libc::ftruncate(file, len as i64) }, 0);
}

#[test]
fn a_region_says_what_was_registered() {
    let (_context, pd) = domain();
    for (len, access) in [(0, Access::LOCAL_READ), (10, Access::LOCAL_WRITE), (5000, RW)] {
        let buffer = Buffer::zeroed(len);
        let region = pd.register(&buffer, access).unwrap();
        assert_eq!((region.addr(), region.len()), (buffer.as_ptr() as u64, len));
        assert_eq!((region.is_empty(), region.access()), (len == 0, access));
        assert_eq!(region.lkey(), region.rkey());
        assert_ne!(region.lkey(), pd.register(&buffer, access).unwrap().lkey());
        assert!(region.lkey() > 1);
    }
}

#[test]
fn what_cannot_be_a_region_is_refused() {
    let (_context, pd) = domain();
    let buffer = Buffer::zeroed(10);
    assert!(pd.register(&buffer, Access::REMOTE_WRITE).is_err());
    let register = |addr: *mut u8, len| {
        // SAFETY: nothing reads or writes the region.
        unsafe { pd.register_raw(addr, len, RW, Box::new(())) }.map(|region| region.len())
    };
    // Nothing is mapped at the end of the address space, nor in its first page.
    let far = ptr::without_provenance_mut(usize::MAX - 9);
    assert!(register(far, 11).unwrap_err().to_string().contains("address space"));
    assert!(register(far, 9).unwrap_err().to_string().contains("cannot be read"));
    assert_eq!(register(ptr::without_provenance_mut(1), 0).unwrap(), 0);
    let (file, at) = mapped_file();
    assert_eq!(register(at, 2 * PAGE).unwrap(), 2 * PAGE);
    set_length(file, PAGE);
    assert_eq!(register(at, PAGE).unwrap(), PAGE);
    assert!(register(at, PAGE + 1).unwrap_err().to_string().contains("truncated"));
}

#[test]
fn bytes_are_read_and_written_between_both_ends_with_the_right_to() {
    let (_context, pd) = domain();
    let buffer = Buffer::zeroed(5);
    let mut region = pd.register(&buffer, Access::LOCAL_WRITE).unwrap();
    for at in 0..5 {
        region.poke(at, at as u8 + 1).unwrap();
        assert_eq!(region.peek(at), Some(at as u8 + 1));
    }
    assert_eq!(buffer.read(0, 5), [1, 2, 3, 4, 5]);
    assert_eq!(region.copy_out(1, 3), [2, 3, 4]);
    assert_eq!(region.copy_out(3, 3), [4, 5]);
    assert_eq!((region.copy_out(5, 1), region.copy_out(9, usize::MAX)), (vec![], vec![]));
    assert_eq!((region.peek(5), region.peek(usize::MAX)), (None, None));
    assert!(region.poke(5, 9).is_err());
    let reader = pd.register(&buffer, Access::LOCAL_READ).unwrap();
    assert!(reader.poke(0, 9).is_err());
    assert_eq!(reader.copy_out(0, 5), [1, 2, 3, 4, 5]);
    region.deregister();
    region.deregister();
    assert_eq!((region.peek(0), region.copy_out(0, 5)), (None, vec![]));
    assert!(region.poke(0, 9).is_err());
}

#[test]
fn of_a_file_that_has_become_shorter_what_is_left_is_read_and_written() {
    let (_context, pd) = domain();
    let (file, at) = mapped_file();
    // SAFETY: it stays mapped.
    let region = unsafe { pd.register_raw(at, 2 * PAGE, RW, Box::new(())) }.unwrap();
    region.poke(2 * PAGE - 1, 3).unwrap();
    assert_eq!(region.peek(2 * PAGE - 1), Some(3));
    set_length(file, PAGE);
    region.poke(PAGE - 1, 7).unwrap();
    assert_eq!((region.peek(PAGE - 1), region.peek(PAGE)), (Some(7), None));
    assert!(region.poke(PAGE, 9).is_err());
    assert_eq!(region.copy_out(PAGE - 2, 10), [0, 7]);
}

#[test]
fn what_keeps_the_memory_is_dropped_with_the_registration() {
    let (context, pd) = domain();
    let buffer = Buffer::zeroed(10);
    let keeper = Arc::new(());
    let register = || {
        // SAFETY: the buffer lives longer.
        unsafe { pd.register_raw(buffer.as_ptr(), 10, RW, Box::new(Arc::clone(&keeper))) }.unwrap()
    };
    let (mut first, second, third) = (register(), register(), register());
    assert_eq!(Arc::strong_count(&keeper), 4);
    first.deregister();
    assert_eq!(Arc::strong_count(&keeper), 3);
    drop(second);
    assert_eq!(Arc::strong_count(&keeper), 2);
    context.close();
    assert_eq!(Arc::strong_count(&keeper), 1);
    drop(third);
}

#[test]
fn the_child_of_a_fork_has_no_region() {
    let (_context, pd) = domain();
    let buffer = Buffer::zeroed(10);
    let region = pd.register(&buffer, RW).unwrap();
    // SAFETY: the child only looks at the region and exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let none =
                region.peek(0).is_none() && region.copy_out(0, 1).is_empty() && region.poke(0, 1).is_err();
            libc::_exit(i32::from(!none));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
    assert_eq!(region.peek(0), Some(0));
}
