//! Functions of verbs that this device lacks. They are defined here because those of libibverbs would read private
//! memory around our objects. Each fails as its documentation says (docs/spec/c-interface.md, section 7.2).

use std::ffi::{c_char, c_int, c_void};

use crate::errno::{EOPNOTSUPP, Errno};
use crate::returns::{e0, m1, pointer};
use crate::told;

/// Why, once, as a program that needs it ends soon.
fn told(function: &str) {
    told::once(format!("{function} refused, MRC has nothing like it"));
}

/// Functions that return an errno value, -1, or NULL. They take any arguments, as they read none. Those of which
/// programs ask whether they are there are refused without a word.
macro_rules! refuse {
    ($($result:ty, $how:ident: $($name:ident)*, silently: $($silent:ident)*;)*) => {
        $(
            $(
                /// Not in MRC: EOPNOTSUPP.
                #[unsafe(no_mangle)]
                pub extern "C" fn $name() -> $result {
                    told(stringify!($name));
                    $how(|| Err(EOPNOTSUPP))
                }
            )*
            $(
                /// Not in MRC: EOPNOTSUPP.
                #[unsafe(no_mangle)]
                pub extern "C" fn $silent() -> $result {
                    $how(|| Err(EOPNOTSUPP))
                }
            )*
        )*
    };
}

refuse! {
    c_int, e0:
        ibv_resize_cq ibv_modify_srq ibv_query_srq ibv_attach_mcast ibv_detach_mcast ibv_resolve_eth_l2_from_gid,
    silently:
        ibv_destroy_srq ibv_destroy_ah ibv_set_ece ibv_query_ece ibv_dealloc_dmah;
    c_int, m1:
        ibv_rereg_mr ibv_init_ah_from_wc ibv_dm_export_dmabuf_fd,
    silently: ;
    *mut c_void, pointer:
        ibv_create_srq ibv_create_ah ibv_create_ah_from_wc ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm
        ibv_alloc_dmah ibv_alloc_buf ibv_reg_buf_mr,
    silently:
        ibv_reg_dmabuf_mr mlx5dv_reg_dmabuf_mr;
}

/// Functions that have nothing to do.
macro_rules! nothing {
    ($($name:ident)*) => {$(
        /// Nothing was imported or allocated.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {}
    )*};
}

nothing! { ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm ibv_free_buf }

/// A plugin expects this of the library that it is linked to.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_is_supported(_device: *mut c_void) -> bool {
    false
}

/// As [`mlx5dv_is_supported`].
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_get_data_direct_sysfs_path(
    _context: *mut c_void,
    _buf: *mut c_char,
    _len: usize,
) -> c_int {
    e0(|| Err(Errno(libc::ENODEV)))
}
