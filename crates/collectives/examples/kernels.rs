//! Bytes per second of the reduction kernels in cache, and of memory: `benches/run.py` divides one by the other. Prints
//! one JSON object.

use std::hint::black_box;
use std::time::Instant;

use openmrc_collectives::kernels::reduce;
use openmrc_collectives::{DataType, ReduceOp};

/// Bytes of each of the three buffers of a reduction: all lie in the second level of cache.
const BLOCK: usize = 64 << 10;
/// Reductions that are timed together.
const CALLS: usize = 2000;
/// Bytes that are copied from and to memory: much more than the last level of cache.
const MEMORY: usize = 256 << 20;
const TURNS: usize = 7;

/// Bytes read and written per second by `dst = a + b`.
fn kernel(dtype: DataType) -> f64 {
    let (a, b, mut dst) = (vec![1u8; BLOCK], vec![2u8; BLOCK], vec![0u8; BLOCK]);
    let began = Instant::now();
    for _ in 0..CALLS {
        let n = BLOCK / dtype.size();
        // SAFETY: all three have `n` elements, and do not overlap.
        unsafe { reduce(dtype, ReduceOp::Sum, dst.as_mut_ptr(), black_box(a.as_ptr()), b.as_ptr(), n) };
        black_box(&mut dst);
    }
    (3 * BLOCK * CALLS) as f64 / began.elapsed().as_secs_f64()
}

/// Bytes read and written per second by copying.
fn memory(from: &[u8], to: &mut [u8]) -> f64 {
    let began = Instant::now();
    to.copy_from_slice(black_box(from));
    black_box(to);
    (2 * from.len()) as f64 / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let (from, mut to) = (vec![1u8; MEMORY], vec![2u8; MEMORY]);
    let [mut float32, mut bfloat16, mut copied] = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        float32.push(kernel(DataType::Float32));
        bfloat16.push(kernel(DataType::BFloat16));
        copied.push(memory(&from, &mut to));
    }
    println!(
        "{{\"float32\": {:.3e}, \"bfloat16\": {:.3e}, \"memory\": {:.3e}}}",
        median(float32),
        median(bfloat16),
        median(copied)
    );
}
