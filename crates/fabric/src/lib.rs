//! Which nodes and links a multi-plane fabric has, how they are named, numbered and addressed.
#![forbid(unsafe_code)]
