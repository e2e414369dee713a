//! Functions of verbs that this device lacks. They are defined here because those of libibverbs would read private
//! memory around our objects. Each fails as its documentation says (docs/spec/c-interface.md, section 7.2).

use std::ffi::{c_char, c_int, c_void};

use crate::errno::{EOPNOTSUPP, Errno};
use crate::returns::{e0, m1, pointer};

/// Functions that return an errno value, -1, or NULL. They take any arguments, as they read none.
macro_rules! refuse {
    (value: $($value:ident)*; minus_one: $($minus_one:ident)*; null: $($null:ident)*; nothing: $($nothing:ident)*) => {
        $(
            /// Not in MRC: EOPNOTSUPP.
            #[unsafe(no_mangle)]
            pub extern "C" fn $value() -> c_int {
                e0(|| Err(EOPNOTSUPP))
            }
        )*
        $(
            /// Not in MRC: -1, EOPNOTSUPP.
            #[unsafe(no_mangle)]
            pub extern "C" fn $minus_one() -> c_int {
                m1(|| Err(EOPNOTSUPP))
            }
        )*
        $(
            /// Not in MRC: NULL, EOPNOTSUPP.
            #[unsafe(no_mangle)]
            pub extern "C" fn $null() -> *mut c_void {
                pointer(|| Err(EOPNOTSUPP))
            }
        )*
        $(
            /// Nothing was imported, so there is nothing to do.
            #[unsafe(no_mangle)]
            pub extern "C" fn $nothing() {}
        )*
    };
}

refuse! {
    value:
        ibv_resize_cq ibv_modify_srq ibv_query_srq ibv_destroy_srq ibv_destroy_ah ibv_attach_mcast ibv_detach_mcast
        ibv_set_ece ibv_query_ece ibv_resolve_eth_l2_from_gid;
    minus_one:
        ibv_rereg_mr ibv_init_ah_from_wc;
    null:
        ibv_create_srq ibv_create_ah ibv_create_ah_from_wc ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm
        ibv_reg_dmabuf_mr ibv_qp_to_qp_ex mlx5dv_reg_dmabuf_mr;
    nothing:
        ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm
}

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
