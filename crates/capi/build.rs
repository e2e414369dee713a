//! The name by which programs find the library at run time, and that it is never unloaded: its threads run its code.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libopenmrc.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--strip-all");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
