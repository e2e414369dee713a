//! Parts of a buffer, one for each rank.

/// First byte of each part, and the end of the last.
pub fn offsets(lens: &[usize]) -> Vec<usize> {
    let mut at = 0;
    let mut result = Vec::with_capacity(lens.len() + 1);
    result.push(0);
    for len in lens {
        at += len;
        result.push(at);
    }
    result
}

/// `count` elements in `ranks` parts that differ by one element at most; bytes.
pub fn even_parts(count: usize, ranks: usize, size: usize) -> Vec<usize> {
    (0..ranks).map(|r| (count / ranks + usize::from(r < count % ranks)) * size).collect()
}
