//! The structures of the interfaces (docs/spec/c-interface.md, sections 5, 6.3 and 7), checked against their sizes and
//! offsets while compiling. Enums are plain integers here: a program may pass any bit pattern.

pub mod ctl;
pub mod extended;
pub mod mrc;
pub mod verbs;

/// Fails to compile where a structure has another size, or a field another offset, than the page says.
macro_rules! layout {
    ($type:ty, $size:literal, $align:literal $(, $($field:ident).+ = $offset:literal)* $(,)?) => {
        const _: () = assert!(size_of::<$type>() == $size && align_of::<$type>() == $align);
        $(const _: () = assert!(std::mem::offset_of!($type, $($field).+) == $offset);)*
    };
}
pub(crate) use layout;
