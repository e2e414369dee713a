//! Work requests between two devices over loopback: what is written arrives, whatever its size and shape.

mod common;

use common::*;
use openmrc_nic::*;

#[test]
fn a_write_arrives() {
    let (a, b) = pair(1);
    let data = pattern(10_000, 1);
    a.buffer.write(0, &data);
    a.write(&b, 0, 5000, data.len(), 7);
    assert_eq!(a.wait_success(1), [7]);
    assert_eq!(b.buffer.read(5000, data.len()), data);
    assert_eq!(b.buffer.read(0, 5000), vec![0; 5000]);
}
